from interlock.cli.host import Host
def run_command_line(host: Host) -> None:
    pass
