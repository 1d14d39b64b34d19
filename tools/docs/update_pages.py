"""Write the generated pages of the manual, in docs/.

python tools/docs/update_pages.py            # write them
python tools/docs/update_pages.py --check    # list outdated pages; exit code 1 if there are any

Each module in tools/docs/pages has a function `render()` that returns the page of its name, or
`render_all()` that returns several by name. A page is written where it is in docs/, and a new one
to docs/reference.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs"
sys.path.insert(0, str(ROOT))  # pages import `tools.docs`, from wherever this is started


def rendered() -> dict[str, str]:
    """Return every generated page by its name."""
    made = {}
    for source in sorted((ROOT / "tools" / "docs" / "pages").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"page_{source.stem}", source)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up there
        spec.loader.exec_module(module)
        several = getattr(module, "render_all", None)
        made.update(several() if several else {source.stem: module.render()})
    return made


def main() -> int:
    """Write the pages, or compare them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only list what is out of date")
    arguments = parser.parse_args()
    stale = []
    for name, text in rendered().items():
        place = next(PAGES.rglob(f"{name}.md"), PAGES / "reference" / f"{name}.md")
        if not place.exists() or place.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not arguments.check:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, encoding="utf-8")
    verb = "out of date" if arguments.check else "written"
    print(f"{verb}: {', '.join(stale)}" if stale else "all pages are up to date")
    return 1 if stale and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
