"""What comes with the package, and the workload and cluster that names and arguments stand for."""
