"""A picture as a mermaid ``stateDiagram-v2``, which GitHub shows in place.

What shaped it, seen with mermaid 11.17:

* An arrow cannot be styled: ``linkStyle`` would be taken for a state (mermaid issue 1352). So the way of a
  run shows in the states' classes and in the labels, as ``[3] start``: its third step.
* A composite state with arrows into the middle of it is laid out badly, and older versions give the states
  within it no class. Hence gates.
* A label ends at ``:`` or ``;``, and ``#`` starts a comment.
* Every class sets the colour of its text as well: pages are read on a dark ground too.
"""

from __future__ import annotations

from interlock.diagrams.picture import NEW, Picture

STYLES = {
    "ending": "fill:#eceff1,stroke:#37474f,stroke-width:4px,color:#1c2529",
    "gate": "fill:#ffffff,stroke:#90a4ae,stroke-dasharray:4 3,font-style:italic,color:#455a64",
    "passed": "fill:#d6e8fb,stroke:#1565c0,stroke-width:2px,color:#0d2f57",
    "here": "fill:#ffb74d,stroke:#bf5b00,stroke-width:4px,color:#331900",
}


def text(picture: Picture) -> str:
    """The diagram, with a newline at its end."""
    lines = ["stateDiagram-v2", "    direction LR"]
    lines += [f'    state "{gate.caption}" as {gate.name}' for gate in picture.gates]
    for arrow in picture.arrows:
        source = "[*]" if arrow.source == NEW else arrow.source
        label = f" : {arrow.label}" if arrow.label else ""
        lines.append(f"    {source} --> {arrow.target}{label}")
    classes = {
        "ending": [state for state in picture.states if state in picture.final],
        "gate": [gate.name for gate in picture.gates],
        "passed": [state for state in picture.states if state in picture.visited and state != picture.current],
        "here": [state for state in picture.states if state == picture.current],
    }
    # A later class overrides an earlier one, so where the run is comes last.
    for name, members in classes.items():
        if members:
            lines += [f"    classDef {name} {STYLES[name]}", f"    class {', '.join(members)} {name}"]
    return "\n".join(lines) + "\n"
