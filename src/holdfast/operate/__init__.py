"""The operators' side: listeners, queries, actions and metrics.

actions.py          what operators do to messages and circuits
control.py          the control socket: shows everything, carries out actions, and checks who connects
exposition.py       metrics in Prometheus' text format; imported at the first scrape
forwarding.py       actions where replicas share a store: the owner of a host carries them out
json_shapes.py      messages, circuits and times as JSON
metrics.py          every metric as data: name, help, labels, and where its value comes from
page.html           the status page
ports.py            what operate needs of delivery and of the process
gateway_queries.py  questions about the gateway, answered as JSON
routing.py          the router, parameters of queries and bodies, and errors as problems
status_listener.py  the status listener, the probe listener, and the page
"""
