"""Pictures of the dashboard, taken from real runs' folders: what the app draws, as SVG.

    python scripts/screenshots.py RUN_FOLDER OUT_FOLDER [--size 110x32] [--light] [--ascii] [KEYS=NAME]...

    python scripts/screenshots.py runs/latest docs/pictures "1=overview" "2 m=ranks-memory"

KEYS are pressed one after the other, with blanks between them; the picture is OUT_FOLDER/NAME.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from pathlib import Path

from launcher.dashboard.app import Dashboard
from launcher.rundir import RunDir

SETTLE_S = 2.2  # two looks of the reader


async def take(app: Dashboard, size: tuple[int, int], wanted: dict[str, str], out: Path) -> None:
    """Drive the app through the keys, and write a picture after each group."""
    async with app.run_test(size=size) as pilot:
        await pilot.pause(SETTLE_S * 2)
        for name, pressed in wanted.items():
            if app.return_value:
                raise SystemExit(app.return_value)
            await pilot.press(*pressed.split())
            await pilot.pause(SETTLE_S)
            (out / f"{name}.svg").write_text(without_links(app.export_screenshot(title="distperf status")))
        app.exit()


def without_links(svg: str) -> str:
    """Fonts of this machine instead of fonts from the net."""
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = svg.replace("<text ", '<text xml:space="preserve" ')
    return svg.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("views", nargs="*", default=["1=overview"])
    parser.add_argument("--size", default="110x32")
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--ascii", action="store_true")
    parser.add_argument("--no-color", action="store_true")
    asked = parser.parse_intermixed_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    wide, high = map(int, asked.size.split("x"))
    app = Dashboard(
        RunDir(asked.run.resolve()), ascii=asked.ascii, color=not asked.no_color, dark=not asked.light
    )
    wanted = {name: pressed for pressed, _, name in (view.rpartition("=") for view in asked.views)}
    asyncio.run(take(app, (wide, high), wanted, asked.out))


if __name__ == "__main__":
    main()
