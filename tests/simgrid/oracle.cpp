// Completion times of a graph of delays and transfers, by SimGrid's flow-level network model.
//
// Input, whitespace separated:
//   LINKS OPS
//   per link:  capacity (bytes/s)
//   per op:    delay (s), bytes (integer),
//              number of links, links..., number of predecessors, predecessors...
// An op begins when all its predecessors have ended, waits out its delay, then moves its bytes over
// its links. Without links or bytes it is a delay alone.
//
// Output: one line per op with the second it ended (-1: never). On the error stream: the CPU seconds
// that building and simulating took, and the peak memory in MB.
//
// Argument: how SimGrid brings transfers up to date (network/optim), Full if left out, or Lazy.
//
// SimGrid shares the links; the delays are its timers, so that they never contend.
// Build: g++ -O2 -std=c++17 oracle.cpp -o oracle -lsimgrid
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <simgrid/kernel/Timer.hpp>
#include <simgrid/s4u.hpp>
#include <simgrid/version.h>
#include <string>
#include <unordered_map>
#include <vector>

namespace sg = simgrid::s4u;

namespace {

struct Op {
  double delay = 0;
  std::uint64_t bytes = 0;
  sg::Host* source = nullptr;
  sg::Host* target = nullptr;
  int missing = 0;
  double end = -1;
  std::vector<int> next;
};

std::vector<Op> ops;
std::unordered_map<const void*, int> op_of; // running transfers
std::vector<sg::CommPtr> transfer;

void ready(int id);

void done(int id)
{
  // not recursive: chains of ops that take no time may be long
  static std::vector<int> todo;
  static bool busy = false;
  todo.push_back(id);
  if (busy)
    return;
  busy = true;
  while (not todo.empty()) {
    Op& op = ops[todo.back()];
    todo.pop_back();
    op.end = sg::Engine::get_clock();
    for (int next : op.next)
      if (--ops[next].missing == 0)
        ready(next);
  }
  busy = false;
}

void send(int id)
{
  const Op& op = ops[id];
  if (op.target == nullptr) {
    done(id);
    return;
  }
  sg::CommPtr comm = sg::Comm::sendto_init();
  comm->set_payload_size(op.bytes);
  op_of[comm.get()] = id;
  transfer[id] = comm;
  comm->set_source(op.source);
  comm->set_destination(op.target);
  if (comm->get_state() != sg::Activity::State::STARTED) // some versions start by themselves
    comm->start();
}

void ready(int id)
{
  const double delay = ops[id].delay;
  if (delay > 0)
    simgrid::kernel::timer::Timer::set(sg::Engine::get_clock() + delay, [id] { send(id); });
  else
    send(id);
}

double seconds()
{
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

double peak_mb()
{
  // not getrusage: its peak begins with that of whoever started this process
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0)
      return std::atof(line.c_str() + 6) / 1024.0;
  return 0;
}

template <class T> T read()
{
  T value;
  if (not(std::cin >> value)) {
    std::fprintf(stderr, "the description ends early or has a field that is no number\n");
    std::exit(2);
  }
  return value;
}

} // namespace

int main(int argc, char** argv)
{
  std::vector<std::string> options = {
      "oracle",
      "--cfg=network/model:CM02",
      std::string("--cfg=network/optim:") + (argc > 1 ? argv[1] : "Full"),
      "--cfg=network/crosstraffic:no",
      "--cfg=network/latency-factor:1",
      "--cfg=network/bandwidth-factor:1",
      "--cfg=network/weight-S:0",
      "--cfg=network/TCP-gamma:0",
#if SIMGRID_VERSION >= 33300
      "--cfg=precision/timing:1e-12",
      "--cfg=precision/work-amount:1e-9",
#else
      "--cfg=surf/precision:1e-12",
      "--cfg=maxmin/precision:1e-9",
#endif
      "--log=root.thres:error",
  };
  std::vector<char*> words;
  for (auto& option : options)
    words.push_back(option.data());
  int count = static_cast<int>(words.size());
  words.push_back(nullptr);

  std::ios::sync_with_stdio(false);
  const auto n_links = read<std::size_t>();
  const auto n_ops   = read<std::size_t>();
  std::vector<double> capacity(n_links);
  for (auto& value : capacity)
    value = read<double>();
  ops.resize(n_ops);
  transfer.resize(n_ops);
  std::vector<std::vector<int>> paths(n_ops);
  for (std::size_t id = 0; id < n_ops; id++) {
    ops[id].delay = read<double>();
    ops[id].bytes = read<std::uint64_t>();
    paths[id].resize(read<std::size_t>());
    for (auto& link : paths[id])
      link = read<int>();
    ops[id].missing = read<int>();
    for (int k = 0; k < ops[id].missing; k++)
      ops.at(read<std::size_t>()).next.push_back(static_cast<int>(id));
  }

  const double begin = seconds();
  sg::Engine engine(&count, words.data());
  auto* zone = sg::create_full_zone("zone");
  std::vector<sg::Link*> links;
  for (double value : capacity)
    links.push_back(zone->create_link("link" + std::to_string(links.size()), value));
  // every path leads from one host to another, a pair of its own; few hosts make many pairs
  std::map<std::vector<int>, std::size_t> index;
  for (std::size_t id = 0; id < n_ops; id++)
    if (not paths[id].empty() && ops[id].bytes > 0)
      index.emplace(paths[id], index.size());
  const auto side = static_cast<std::size_t>(std::ceil(std::sqrt(index.size())));
  std::vector<sg::Host*> hosts;
  for (std::size_t k = 0; k < 2 * side; k++)
    hosts.push_back(zone->create_host("host" + std::to_string(k), "1Gf"));
  for (const auto& [path, pair] : index) {
    std::vector<sg::LinkInRoute> route;
    for (int link : path)
      route.emplace_back(links.at(link));
    zone->add_route(hosts[pair / side]->get_netpoint(), hosts[side + pair % side]->get_netpoint(),
                    nullptr, nullptr, route, false);
  }
  for (std::size_t id = 0; id < n_ops; id++) {
    const auto found = index.find(paths[id]);
    if (found == index.end() || ops[id].bytes == 0)
      continue;
    ops[id].source = hosts[found->second / side];
    ops[id].target = hosts[side + found->second % side];
  }
  zone->seal();
  sg::Comm::on_completion_cb([](const auto& comm) {
    const auto found = op_of.find(&comm);
    const int id     = found->second;
    op_of.erase(found);
    done(id);
  });

  const double built = seconds();
  std::vector<int> first;
  for (std::size_t id = 0; id < n_ops; id++)
    if (ops[id].missing == 0)
      first.push_back(static_cast<int>(id));
  for (int id : first)
    ready(id);
  engine.run();
  const double ended = seconds();

  for (const Op& op : ops)
    std::printf("%.17g\n", op.end);
  std::fprintf(stderr, "%.6f %.6f %.1f\n", built - begin, ended - built, peak_mb());
}
