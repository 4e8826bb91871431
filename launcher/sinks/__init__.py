"""Who else hears of a run while it goes: monitoring, and people. They follow the run's folder, as any reader does."""
