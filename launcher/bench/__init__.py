"""`distperf bench`: what hosts can do, measured, told, and kept for the planner."""
