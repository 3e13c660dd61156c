"""The `holdfast` command. Each file of commands is imported only when one of its commands is called.

main.py            the first word picks the command; exit statuses, Ctrl-C, closed pipes
commands.py        the table of commands: entry point, summary, examples
command_error.py   the error that ends a command, and lines on stderr
arguments.py       parsers with the same look, shared options, the config, addresses
control_client.py  HTTP requests to a gateway; the control socket
output.py          tables, sizes, times and colours; --watch; the progress bar
bulk_actions.py    replaying or dropping many messages in steps

run.py             run, check
status.py          status, drain, reload
circuits.py        circuits, freeze, unfreeze, probe
messages.py        messages, why
dead.py            dead
tail.py            tail
send.py            send
health.py          health
store_commands.py  fsck, export, import, compact, handoff, migrate
demo.py            demo
completions.py     completions
"""
