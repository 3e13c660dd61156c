"""The `holdfast` command: one file per command group, each imported only when its command is called.

main.py       the first word picks the command; exit statuses, Ctrl-C, closed pipes
commands.py   every command as data: where it lives, its summary, its examples
parsing.py    argument parsers that look alike, and the options that many commands share
failure.py    the one error that ends a command with a line on stderr
settings.py   the config as a command needs it
peer.py       one HTTP exchange with a gateway, or a clear line on why there was none
gateway.py    the control socket: documents and pages
times.py      moments and durations for people
text.py       tables, facts, sizes and colours for people
filters.py    which messages something in bulk is about
bulk.py       many messages in steps that Ctrl-C may come between
progress.py   the bar, and the steps' way with Ctrl-C
watching.py   --watch
addresses.py  which address to dial for one that is listened on

run.py, check.py, status.py, circuits.py, switching.py (freeze, unfreeze, probe), messages.py with message_actions.py,
why.py, dead.py with exporting.py, tail.py, drain.py, send.py, health.py, offline.py (fsck, export, import, compact) and
completions.py with shells.py are the commands.
"""
