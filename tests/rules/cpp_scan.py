# SPDX-License-Identifier: Apache-2.0
"""Just enough of C++ to tell code from comments and to measure functions."""

import re

_TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<tag>[^()\\ ]{0,16})\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])*'""",
    re.DOTALL,
)


def _blank(text):
    return re.sub(r"[^\n]", " ", text)


def without_comments(text):
    """The text with comments blanked; strings stay; line numbers stay."""
    return _TOKENS.sub(lambda m: _blank(m.group()) if m.group().startswith("/") else m.group(), text)


def _code_only(text):
    text = _TOKENS.sub(lambda m: _blank(m.group()), text)
    return re.sub(r"^[ \t]*#.*?(?<!\\)$", lambda m: _blank(m.group()), text, flags=re.MULTILINE | re.DOTALL)


def functions(text):
    """(first line, number of lines) of every function body's definition at namespace or class scope."""
    code = _code_only(text)
    scopes = []  # (kind, line where its header began)
    header_start, line = 0, 1
    position_line = 1
    for index, char in enumerate(code):
        if char == "\n":
            line += 1
        elif char in ";":
            header_start = index + 1
        elif char == "{":
            header = code[header_start:index]
            position_line = line - header.strip().count("\n")
            scopes.append((_kind(header, scopes), position_line))
            header_start = index + 1
        elif char == "}":
            if scopes:
                kind, start = scopes.pop()
                if kind == "function":
                    yield start, line - start + 1
            header_start = index + 1


def _kind(header, scopes):
    outer = scopes[-1][0] if scopes else "namespace"
    header = header.strip()
    if outer not in ("namespace", "class"):
        return "inner"
    if re.match(r"(inline\s+)?namespace\b", header) or header.startswith("extern"):
        return "namespace"
    without_templates = re.sub(r"^template\s*<[^{]*?>\s*(?=class|struct|union)", "", header)
    if re.match(r"(class|struct|union)\b", without_templates) and not header.endswith(")"):
        return "class"
    if header.startswith("enum"):
        return "inner"
    if header.endswith("=") or header.endswith("]"):
        return "inner"  # An initialiser.
    # "(" : a parameter list. Nothing at all: the body after a constructor's last {member}.
    return "function" if "(" in header or header in ("", ",") else "inner"
