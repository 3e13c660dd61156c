"""What operators look at and act through.

ports.py       what operate needs of delivery and of the process, in its own words
insight.py     questions about the gateway, answered with JSON from one place
shapes.py      messages, circuits and times as JSON
metrics.py     every metric as data
exposition.py  the same as Prometheus' text
routing.py     paths to handlers, for all listeners
probes.py      health, readiness, metrics: the probe listener, and part of the status listener
status.py      the status listener: reads only, shows no path of a target
control.py     the control socket: shows everything, and acts
peers.py       who may use the control socket
"""
