"""Write two settled iterations as a Chrome trace, the JSON that Perfetto opens."""

import json
import tempfile
from collections import Counter
from pathlib import Path

from perfmodel import make_job, predict

prediction = predict(make_job(model="resnet18", device="v100", workers=4, arch="ring"))

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "trace.json"
    path.write_text(json.dumps(prediction.to_chrome_trace()))
    events = json.loads(path.read_text())["traceEvents"]

timed = [event for event in events if event["ph"] == "X"]
print(f"{len(timed)} events on {len({event['pid'] for event in timed})} nodes")
for category, count in Counter(event["cat"] for event in timed).most_common():
    total_s = sum(event["dur"] for event in timed if event["cat"] == category) * 1e-6
    print(f"{category:12} {count:4} events, {total_s * 1e3:8.2f} ms")
