"""`distperf report`: what became of a run, as text and as one page that needs nothing else."""
