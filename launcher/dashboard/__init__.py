"""`distperf status` on a terminal: pure views of a run (frozen lines), and a thin Textual app that paints them."""
