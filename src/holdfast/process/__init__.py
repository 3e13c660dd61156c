"""The process around the gateway: what app.py puts together.

gateway.py          composes a gateway around an open store, and hears what the store reports
outbound.py         the way out: guard, dialer and transport of one config, and of the next
stores.py           opens the store that the config names, with its clock
credentials.py      reads the secrets, certificates and passwords that the config names
listeners.py        opens every address to listen on; the ingest server of one config, and of the next
lifecycle.py        starting, ready, draining: what probes and operators see of it
reload.py           what a new config may change, and a watch for changes on disk
descriptors.py      how many file descriptors there are, and who gets them
service_manager.py  systemd's notify protocol and watchdog
log.py              log lines as JSON or text
log_messages.py     what the process logs about itself: start, store, shutdown
random_bits.py      randomness for message ids
"""
