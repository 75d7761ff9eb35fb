"""A cluster simulated by discrete events and fluid flows, driven by the live policy objects (docs/simulator.md)."""
