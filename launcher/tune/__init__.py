"""`distperf tune`: the best candidates of a plan, tried for a few steps each."""
