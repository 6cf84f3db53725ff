"""Many jobs: grids of values, predicted in processes or on a cluster, compared, or trained."""
