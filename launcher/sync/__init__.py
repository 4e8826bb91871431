"""Code that goes along with a launch (launch.sync), to hosts that do not see it."""
