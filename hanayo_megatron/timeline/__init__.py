"""Pictures and traces of what each rank does when, simulated or measured."""
