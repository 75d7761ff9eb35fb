"""What a person sees of a supervisor's work."""

from rich.console import Console
from rich.markup import escape
from rich.status import Status


class ConsoleReporter:
    """One line an event, and on a terminal a spinner that says what is being waited for."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._waiting: dict[str, str] = {}  # in order of starting; why each is not ready, as far as it has said
        self._spinner: Status | None = None

    def starting(self, name: str, pid: int) -> None:
        self._waiting[name] = ""
        self._spin()

    def waiting(self, name: str, why: str) -> None:
        self._waiting[name] = why
        self._spin()

    def ready(self, name: str, seconds: float) -> None:
        self._console.print(f"[green]✓[/green] {name:<18} ready after {seconds:.1f} s")
        self._waiting.pop(name, None)
        self._spin()

    def died(self, name: str, how: str, restart_in_s: float) -> None:
        self._console.print(f"[red]✗[/red] {name:<18} {how}; starting it again in {restart_in_s:.1f} s")

    def stopping(self, name: str) -> None:
        self.quiet()
        self._spinner = self._console.status(f"{name} ends what runs; Ctrl-C again: at once")
        self._spinner.start()

    def stopped(self, name: str, by_itself: bool) -> None:
        self.quiet()
        how = "stopped" if by_itself else "[red]was killed before it had ended[/red]"
        self._console.print(f"[dim]■[/dim] {name:<18} {how}")

    def quiet(self) -> None:
        """Ends the spinner."""
        if self._spinner:
            self._spinner.stop()
        self._spinner = None
        self._waiting.clear()

    def _spin(self) -> None:
        if not self._waiting:
            self.quiet()
            return
        text = f"waiting for {', '.join(self._waiting)}"
        if len(self._waiting) == 1 and (why := next(iter(self._waiting.values()))):
            text = escape(f"{text}: {why}")
        if self._spinner:
            self._spinner.update(text)
        else:
            self._spinner = self._console.status(text)
            self._spinner.start()
