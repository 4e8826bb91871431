"""SLURM: what an allocation gives (allocation), a batch script (script), and the queue (queue)."""
