"""Where does the time go? VGG-16 on four V100s: a timeline of two steady-state iterations.

`to_chrome_trace` returns the same timeline as JSON for Perfetto.

    python examples/04_where_time_goes.py [PICTURE.png]
"""

import sys
from collections import Counter
from pathlib import Path

from perfmodel import make_job, predict


def main() -> None:
    job = make_job(model="vgg16", device="v100", cluster="ethernet-10g", workers=4, arch="ring")
    prediction = predict(job)
    print(f"an iteration takes {prediction.iteration_s * 1e3:.1f} ms; "
          f"devices are idle for {prediction.idle_fraction.mean:.0%} of it")  # fmt: skip
    slices = [e for e in prediction.to_chrome_trace()["traceEvents"] if e["ph"] == "X"]
    events = [e for e in slices if e["cat"] != "iteration"]
    for category, count in Counter(event["cat"] for event in events).most_common():
        total_s = sum(event["dur"] for event in events if event["cat"] == category) * 1e-6
        print(f"{category:12} {count:4} events, {total_s * 1e3:8.2f} ms")
    print(f"bottleneck: {prediction.bottleneck.text}")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_bytes(prediction.to_image("png"))


main()
