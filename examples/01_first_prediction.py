"""Predict one job and read the answer."""

from perfmodel import make_job, predict

job = make_job(model="resnet50", device="v100", workers=8, arch="ps")
prediction = predict(job, dataset_size=1_281_167, epochs=90)

print(prediction)
print(f"throughput   {prediction.throughput_samples_per_s:.1f} samples/s")
print(f"one epoch    {prediction.training.epoch_s / 3600:.2f} h")
print(f"idle         {prediction.idle_fraction.mean:.1%}")
for cause, part in prediction.idle_fraction.by_cause.items():
    print(f"  {cause:10} {part:.1%}")
print(f"why          {prediction.bottleneck.text}")
print(f"times are    {prediction.quality}")
