"""A process without the run's token is dropped with one line, and the run goes on."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfmodel import InputError, PerfmodelError
from perfmodel.measuring.measurements import Measurements
from perfmodel.measuring.processes import connecting
from perfmodel.measuring.processes.connecting import Listener, connect
from perfmodel.measuring.processes.group import Hello, meet
from perfmodel.measuring.processes.ranks import Place, place
from perfmodel.measuring.processes.sockets import Connection, LostError
from perfmodel.measuring.processes.tokens import (
    ANSWER_BYTES,
    GREETING,
    REFUSED,
    Answer,
    Question,
    Token,
    given_token,
    own_token,
)
from perfmodel.measuring.training.run import MeasuredRun
from perfmodel.measuring.training.server import HEADER, HELLO
from tests.hostile import ATTACKS, HOST, NESTED, WRONG, Attack, Strangers, attacked, hello, proving
from tests.measuring import test_measure_training as of_training
from tests.measuring.test_measure_network import (
    IMPATIENCE_S,
    PATIENCE_S,
    TOKEN,
    all_ranks,
    at_once,
    connected,
    small,
)
from tests.namespaces import free_port
from tests.settings import examples

LINE = re.compile(r"dropped (?P<address>\S+): .")
LISTENERS = (
    "perfmodel.measuring.processes.group.Listener",
    "perfmodel.measuring.training.measure.Listener",
    "tests.measuring.test_measure_training.Listener",
)


@pytest.fixture
def strangers(caplog: pytest.LogCaptureFixture) -> Iterator[Strangers]:
    """Strangers that are disconnected on exit."""
    caplog.set_level(logging.WARNING, "perfmodel.measuring")
    with Strangers() as found:
        yield found


def dropped(caplog: pytest.LogCaptureFixture) -> Counter[str]:
    """The dropped addresses and the number of log lines; each entry must be a single line."""
    found: Counter[str] = Counter()
    for record in caplog.records:
        line = record.getMessage()
        assert line.isprintable()
        assert len(line) < 300
        match = LINE.match(line)
        assert match, line
        found[match["address"]] += 1
    return found


# -- listening -------------------------------------------------------------------------------


def admitted(attack: Attack, strangers: Strangers) -> bool:
    """Whether a process of the run can connect although a stranger came first."""
    with Listener(HOST, 0, PATIENCE_S, TOKEN) as listener:
        strangers.come(listener.port, attack)
        acts: Any = (
            lambda: connect(HOST, listener.port, PATIENCE_S, TOKEN),
            lambda: listener.accept(PATIENCE_S),
        )
        here, there = at_once(2, lambda i: acts[i]())
        assert isinstance(here, Connection), here
        assert isinstance(there, Connection), there
        with here, there:
            here.send_object("known")
            return bool(there.receive_object() == "known")


@pytest.mark.parametrize("name", ATTACKS)
def test_a_stranger_is_dropped_with_one_line(
    name: str, strangers: Strangers, caplog: pytest.LogCaptureFixture
) -> None:
    assert admitted(ATTACKS[name], strangers)
    assert dropped(caplog) == Counter(strangers.addresses)


def test_a_silent_visitor_is_dropped_in_time(
    strangers: Strangers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "HANDSHAKE_S", 0.1)
    with Listener(HOST, 0, PATIENCE_S, TOKEN) as listener:
        for name in ("silence", "half a greeting"):
            strangers.come(listener.port, ATTACKS[name])
        with pytest.raises(LostError, match=r"^nobody did not connect within 1 s$"):
            listener.accept(1.0, "nobody")
        assert dropped(caplog) == Counter(strangers.addresses)
    assert "did not authenticate within 0.1 s; sent nothing" in caplog.text


def test_a_crowd_does_not_keep_ranks_out(
    strangers: Strangers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "HANDSHAKE_S", 1e9)
    monkeypatch.setattr(connecting, "MOST_VISITORS", 3)
    monkeypatch.setattr(connecting, "MOST_LOGGED", 4)
    with Listener(HOST, 0, PATIENCE_S, TOKEN) as listener:
        for _ in range(9):
            strangers.come(listener.port, ATTACKS["silence"])
        acts: Any = (
            lambda: connect(HOST, listener.port, PATIENCE_S, TOKEN),
            lambda: listener.accept(PATIENCE_S),
        )
        for one in at_once(2, lambda i: acts[i]()):
            one.close()
    lines = [record.getMessage() for record in caplog.records]
    assert all("too many connections were waiting" in line for line in lines[:4])
    assert lines[4:] == ["dropped 5 connections; no more will be logged"]


@examples(60)
@given(st.lists(st.binary(max_size=100), max_size=4), st.booleans())
@example([bytes(ANSWER_BYTES - len(GREETING))], True)
def test_random_bytes_are_dropped(parts: list[bytes], greets: bool) -> None:
    def attack(one: socket.socket) -> None:
        for part in [GREETING, *parts] if greets else parts:
            one.sendall(part)

    with Strangers() as found:
        assert admitted(attack, found)


@examples(200)
@given(st.binary(min_size=ANSWER_BYTES, max_size=ANSWER_BYTES))
def test_no_random_answer_is_a_proof(answer: bytes) -> None:
    assert Question(TOKEN).verdict(GREETING + answer[len(GREETING) :]) == REFUSED


def test_a_proof_is_valid_for_one_challenge_and_one_side() -> None:
    first, second = Question(TOKEN), Question(TOKEN)
    answer = Answer(TOKEN, first.frame)
    verdict = first.verdict(answer.frame)
    assert answer.accepts(verdict)
    assert second.verdict(answer.frame) == REFUSED
    assert first.verdict(Answer(WRONG, first.frame).frame) == REFUSED
    # one side's proof proves nothing when the other side sends it
    mirrored = answer.frame[:-32] + verdict
    assert first.verdict(mirrored) == REFUSED
    assert not answer.accepts(answer.frame[-32:])
    assert not Answer(WRONG, first.frame).accepts(verdict)
    assert "known to all tests" not in repr(TOKEN)


def test_a_token_is_never_sent() -> None:
    question = Question(TOKEN)
    answer = Answer(TOKEN, question.frame)
    said = question.frame + answer.frame + question.verdict(answer.frame)
    assert TOKEN.text.encode() not in said


# -- messages after authentication ------------------------------------------------------------


def test_nesting_is_bounded() -> None:
    with pytest.raises(RecursionError):  # canary: without the limit this would happen
        msgspec.json.decode(NESTED[8:], type=Hello)
    with connected() as (here, there):
        thread = threading.Thread(target=here.send, args=(NESTED,))
        thread.start()
        with pytest.raises(LostError, match=r"^here sent an invalid message$"):
            there.receive_object(Hello)
        thread.join(PATIENCE_S)


@examples(60)
@given(st.binary(max_size=60), st.one_of(st.none(), st.integers(0, 2**64 - 1)))
@example(b"{}", 10 * 10**9)
@example(b'"\xff"', None)
@example(b"1e999", None)
def test_random_messages_end_with_one_line(data: bytes, length: int | None) -> None:
    with connected(IMPATIENCE_S) as (here, there):
        size = len(data) if length is None else length
        here.send(size.to_bytes(8, "big") + data)
        here.close()
        with contextlib.suppress(LostError):
            there.receive_object(dict[str, Any])


# -- whole runs --------------------------------------------------------------------------------


def attack_all(strangers: Strangers, monkeypatch: pytest.MonkeyPatch, *attacks: Attack) -> None:
    """Send strangers to every listener of a run, before its own processes connect."""
    for name in LISTENERS:
        monkeypatch.setattr(name, attacked(strangers, *attacks))


def test_a_measurement_goes_on_among_strangers(
    strangers: Strangers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a wait for a silent stranger would never end
    monkeypatch.setattr(connecting, "HANDSHAKE_S", 1e9)
    attack_all(strangers, monkeypatch, *ATTACKS.values())
    first, *others = all_ranks(3, lambda place: small(place, seconds=PATIENCE_S))
    assert isinstance(first, Measurements)
    assert {one.operation for one in first.measurements} >= {"ping_pong", "all_reduce", "incast"}
    assert others == [None, None]
    assert len(strangers.addresses) == 2 * len(ATTACKS)  # ranks 0 and 1 listen
    assert dropped(caplog) == Counter(strangers.addresses)


def test_a_parameter_server_goes_on_among_strangers(
    strangers: Strangers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "HANDSHAKE_S", 1e9)
    attack_all(strangers, monkeypatch, *ATTACKS.values())
    found, _, _ = of_training.trained(0.0, servers=2)
    expected = of_training.sequential(of_training.SIZES, workers=3, iterations=6)
    assert all(of_training.equal(values, expected) for values in found)
    assert dropped(caplog) == Counter(strangers.addresses)


def test_a_training_run_goes_on_among_strangers(
    strangers: Strangers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack_all(strangers, monkeypatch, *ATTACKS.values())
    run, *others = of_training.runs([of_training.plan()] * 3)
    assert isinstance(run, MeasuredRun)
    assert run.measured.iterations == 6
    assert others == [None, None]
    assert len(strangers.addresses) == 3 * len(ATTACKS)  # ranks 0 and 1 and the server listen
    assert dropped(caplog) == Counter(strangers.addresses)


@pytest.fixture
def intruder(strangers: Strangers, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Accept every visitor as a process of the run; a stranger comes first."""

    def intrude(data: bytes) -> None:
        inside = threading.Event()

        def later(*arguments: Any) -> Connection:
            assert inside.wait(PATIENCE_S)
            return connect(*arguments)

        monkeypatch.setattr(Token, "proves", lambda *_: True)
        monkeypatch.setattr("perfmodel.measuring.processes.group.connect", later)
        monkeypatch.setattr("perfmodel.measuring.training.worker.connect", later)
        attack_all(strangers, monkeypatch, proving(data, inside.set))

    return intrude


def test_canary_without_a_check_a_stranger_ends_a_measurement(
    intruder: Callable[[bytes], None],
) -> None:
    intruder(hello(1))
    found = all_ranks(3, lambda place: small(place, timeout_s=2.0))
    assert all(isinstance(one, PerfmodelError) for one in found)


def test_canary_without_a_check_a_stranger_ends_training(
    intruder: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_training, "TIMEOUT_S", 2.0)
    intruder(HEADER.pack(HELLO, 0, 0) + b"\xff" * 1000)
    with pytest.raises((LostError, TimeoutError)):
        of_training.trained(0.0)


class Serial(Listener):
    """Serves one visitor to the end before the next."""

    def _let_in(self, peer: str) -> None:
        if not self._visitors:
            super()._let_in(peer)


def test_canary_serving_one_visitor_at_a_time_blocks_the_others(
    strangers: Strangers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "HANDSHAKE_S", 1e9)
    with Serial(HOST, 0, PATIENCE_S, TOKEN) as listener:
        strangers.come(listener.port, ATTACKS["silence"])
        acts: Any = (
            lambda: connect(HOST, listener.port, 2 * IMPATIENCE_S, TOKEN),
            lambda: listener.accept(IMPATIENCE_S),
        )
        assert all(isinstance(one, LostError) for one in at_once(2, lambda i: acts[i]()))


# -- a different token -------------------------------------------------------------------------


def test_a_different_token_is_reported_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    def act(place: Place) -> Any:
        token = Token(b"another token than", "--token-file: other") if place.rank else None
        return small(msgspec.structs.replace(place, token=token), timeout_s=2.0)

    first, other = all_ranks(2, act)
    assert str(first) == "rank 1 did not connect within 2 s"
    assert re.fullmatch(
        rf"rank 0 at {HOST}:\d+ has a different token from this rank's \(--token-file: other\); "
        "give all ranks the same one, with PERFMODEL_TOKEN or --token-file",
        str(other),
    )
    (line,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert re.fullmatch(rf"dropped {HOST}:\d+: has a different token", line)


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.2\r\n", GREETING + bytes(64)])
def test_the_listener_must_prove_itself(said: bytes) -> None:
    def listens() -> None:
        accepted, _ = listening.accept()
        with accepted:
            accepted.sendall(said)
            accepted.recv(4096)

    with socket.create_server((HOST, 0)) as listening:
        listening.settimeout(PATIENCE_S)
        acts: Any = (
            listens,
            lambda: connect(HOST, listening.getsockname()[1], PATIENCE_S, TOKEN, peer="rank 0"),
        )
        _, error = at_once(2, lambda i: acts[i]())
    assert isinstance(error, InputError)
    assert "rank 0 at" in str(error)


def test_commands_report_strangers(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "perfmodel", "measure", "network", "--ranks", "2"]
    words += ["--sizes", "1KB", "--repetitions", "2", "--output", str(tmp_path / "net.json")]
    environment = os.environ | {"PERFMODEL_TOKEN": "given to these two commands"}
    with free_port() as port, Strangers() as found:
        words += ["--address", f"{HOST}:{port}"]
        first = subprocess.Popen(
            [*words, "--rank", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=environment,
        )
        try:
            assert first.stderr is not None
            line = first.stderr.readline()
            assert line == (
                f"perfmodel: rank 0 listens on {HOST}, port {port}; token: PERFMODEL_TOKEN\n"
            )
            found.come(port, ATTACKS["control characters"])
            said = first.stderr.readline()
            wrong = run_to_end([*words, "--rank", "1"], environment | {"PERFMODEL_TOKEN": "x" * 16})
            right = run_to_end([*words, "--rank", "1"], environment)
            _, err = first.communicate(timeout=2 * PATIENCE_S)
        finally:
            first.kill()
            first.communicate()
    assert said == (
        f"perfmodel: dropped {found.addresses[0]}: is not a perfmodel process of this version; "
        "sent b'\\x1b[2J\\x07\\r\\nperfmodel: error: all is lost\\n'\n"
    )
    assert wrong.returncode == 2
    assert "has a different token from this rank's (PERFMODEL_TOKEN)" in wrong.stderr
    assert (right.returncode, right.stderr) == (0, "")
    assert first.returncode == 0
    assert re.match(rf"perfmodel: dropped {HOST}:\d+: has a different token\nwrote ", err)


def run_to_end(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        env=environment,
        timeout=2 * PATIENCE_S,
        check=False,
    )


# -- origin of the token -----------------------------------------------------------------------


def test_a_token_file_takes_precedence_over_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"  of sixteen bytes at least \n")
    environment = {"PERFMODEL_TOKEN": "of the environment"}
    found = given_token(str(path), environment)
    assert found is not None
    assert (found.text, found.source) == ("of sixteen bytes at least", f"--token-file: {path}")
    found = given_token(None, environment)
    assert found is not None
    assert (found.text, found.source) == ("of the environment", "PERFMODEL_TOKEN")
    assert given_token(None, {}) is None


@pytest.mark.parametrize(
    ("path", "environment", "line"),
    [
        (
            None,
            {"PERFMODEL_TOKEN": ""},
            "PERFMODEL_TOKEN: a token must have 16 to 1024 bytes, got 0",
        ),
        (None, {"PERFMODEL_TOKEN": "x" * 15}, "PERFMODEL_TOKEN: a token must have 16 to 1024"),
        (None, {"PERFMODEL_TOKEN": "x" * 1025}, "PERFMODEL_TOKEN: a token must have 16 to 1024"),
        ("no/such/file", {}, "--token-file: no/such/file: cannot read: "),
        (".", {}, "--token-file: .: cannot read: "),
        ("a\0b", {}, "--token-file: "),
        (os.devnull, {}, f"--token-file: {os.devnull}: a token must have 16 to 1024 bytes, got 0"),
    ],
)
def test_invalid_tokens_are_reported(
    path: str | None, environment: dict[str, str], line: str
) -> None:
    with pytest.raises(InputError) as caught:
        given_token(path, environment)
    assert str(caught.value).startswith(line)


def test_a_user_has_a_token_that_others_cannot_read(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    found = at_once(8, lambda _: own_token(environment))  # all processes create it at once
    assert len({one.text for one in found}) == 1
    assert len(found[0].text) == 64
    path = tmp_path / "config" / "perfmodel" / "token"
    assert found[0].source == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["token"]
    assert own_token({"XDG_CONFIG_HOME": str(tmp_path / "other")}).text != found[0].text
    path.chmod(0o640)
    with pytest.raises(InputError, match="other users can read this token; delete it, or chmod"):
        own_token(environment)


def test_an_unwritable_home_is_reported(tmp_path: Path) -> None:
    (tmp_path / "perfmodel").write_text("in the way")
    with pytest.raises(InputError, match=r"cannot store a token there: .*; set PERFMODEL_TOKEN$"):
        own_token({"XDG_CONFIG_HOME": str(tmp_path)})


def test_the_default_is_the_user_s_token(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}

    def act(one: Place) -> str:
        with meet(one, {}, timeout_s=PATIENCE_S, environment=environment) as group:
            return group.token.source

    assert all_ranks(2, act) == [str(tmp_path / "perfmodel" / "token")] * 2


# -- listening address -------------------------------------------------------------------------


def listening(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses on which sockets listen from now on."""
    found: list[str] = []

    class Noted(Listener):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.append(self.host)

    for name in LISTENERS:
        monkeypatch.setattr(name, Noted)
    return found


def test_ranks_listen_only_on_the_address_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = listening(monkeypatch)
    of_training.runs([of_training.plan()] * 3)
    assert found == [HOST] * 3  # rank 0, rank 1 for rank 2, and the server listen


linux = pytest.mark.skipif(sys.platform != "linux", reason="about Linux")


@linux
@pytest.mark.parametrize(
    ("listen", "expected"), [("127.0.0.9", "127.0.0.9"), ("lo", HOST), ("0.0.0.0", "0.0.0.0")]
)
def test_the_address_can_be_chosen(
    listen: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = listening(monkeypatch)
    come = "127.0.0.9" if listen == "127.0.0.9" else HOST

    def act(one: Place) -> str:
        one = msgspec.structs.replace(one, host=come, listen=listen)
        with meet(one, {}, timeout_s=PATIENCE_S) as group:
            assert sorted(group.links) == [rank for rank in range(3) if rank != one.rank]
            return group.rank_0_host

    assert all_ranks(3, act) == [come] * 3
    assert found == [expected] * 2


def test_a_foreign_address_is_reported() -> None:
    with pytest.raises(InputError, match=r"^--address, --listen: cannot listen on 192\.0\.2\.1:"):
        small(Place(0, 2, HOST, 1, "192.0.2.1"))
    with pytest.raises(InputError, match=r"^--address, --listen: cannot listen on no such place:"):
        small(Place(0, 2, HOST, 1, "no such place"))


@pytest.mark.parametrize(
    ("address", "listen", "line"),
    [
        ("0.0.0.0:29500", None, "--address: 0.0.0.0 is not an address that other ranks can reach"),
        ("[::]:29500", None, "--address: :: is not an address that other ranks can reach"),
        (None, "", "--listen: expected an address or a network interface, got nothing"),
    ],
)
def test_invalid_addresses_are_reported(address: str | None, listen: str | None, line: str) -> None:
    with pytest.raises(InputError) as caught:
        place(0, 2, address, listen, environment={})
    assert str(caught.value).startswith(line)


# -- under torchrun ----------------------------------------------------------------------------


@pytest.fixture
def torchrun() -> Iterator[dict[str, str]]:
    """torchrun's variables and its store."""
    dist = pytest.importorskip("torch.distributed")
    store = dist.TCPStore(HOST, 0, None, is_master=True, wait_for_workers=False)
    yield {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(store.port),
    }
    del store


def met(environment: dict[str, str], act: Callable[[Any], Any], **more: Any) -> list[Any]:
    """Results of ``act`` for the groups of three ranks started by torchrun."""

    def one(rank: int) -> Any:
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        where = Place(rank, 3, host, port, **more)
        with meet(where, {}, timeout_s=PATIENCE_S, environment=environment) as group:
            return act(group)

    return at_once(3, one)


def test_torchrun_passes_on_a_token_and_the_address(
    torchrun: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = listening(monkeypatch)
    said = met(torchrun, lambda group: (group.token.source, group.token.text, group.rank_0_host))
    assert said == [said[0]] * 3
    assert said[0][0] == "torchrun's store"
    assert len(said[0][1]) == 64
    assert said[0][2] == HOST
    assert found == [HOST] * 2


def test_a_given_token_is_not_stored_by_torchrun(torchrun: dict[str, str]) -> None:
    import torch.distributed

    said = met(torchrun, lambda group: group.token.text, token=TOKEN)
    assert said == [TOKEN.text] * 3
    dist: Any = torch.distributed
    store = dist.TCPStore(HOST, int(torchrun["MASTER_PORT"]), is_master=False)
    assert TOKEN.text.encode() not in store.get("perfmodel/0/point")
    assert b'"secret":""' in store.get("perfmodel/0/point")


@linux
def test_a_name_that_resolves_differently_on_its_own_node(
    torchrun: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = listening(monkeypatch)
    # connections to it come from 127.0.0.1
    said = met(torchrun | {"MASTER_ADDR": "127.0.1.1"}, lambda group: group.rank_0_host)
    assert said == [HOST] * 3
    assert found == [HOST] * 2


def test_ranks_on_other_nodes_determine_the_address_of_rank_0(
    torchrun: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 is on rank 0's node, where its name resolves differently; rank 2 is not."""
    from perfmodel.measuring.processes.torchrun import Route, Store

    def publish_route(self: Any) -> None:
        rank = self._place.rank
        self._set(f"route/{rank}", Route(f"127.0.0.{rank}", same_node=rank == 1))

    monkeypatch.setattr(Store, "publish_route", publish_route)
    found = listening(monkeypatch)
    assert met(torchrun, lambda group: group.rank_0_host) == ["127.0.0.2"] * 3
    assert found[0] == "127.0.0.2"


@linux
def test_torch_listens_on_one_address_too() -> None:
    from datetime import timedelta

    torch = pytest.importorskip("torch.distributed")
    from perfmodel.measuring.processes.torch_backend import store

    patience = timedelta(seconds=PATIENCE_S)
    made = store(torch, HOST, None, 2, patience)
    there = store(torch, HOST, made.port, 2, patience)
    there.set("word", "said")
    assert made.get("word") == b"said"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", made.port), PATIENCE_S)
    # canary: by default it listens on all addresses
    wide = torch.TCPStore(HOST, 0, 2, is_master=True, wait_for_workers=False, timeout=patience)
    socket.create_connection(("127.0.0.2", wide.port), PATIENCE_S).close()
