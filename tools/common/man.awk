# SPDX-License-Identifier: Apache-2.0
# Makes sections of a man page (mdoc) from Markdown: "# " begins a section, "- term :: text" and "- text" an item, four
# blanks an example. `Code` is bold, *a name* italic.
function inline(text,  i) {
  gsub(/\\/, "\\e", text)
  for (; (i = index(text, "`")); bold = !bold)
    text = substr(text, 1, i - 1) (bold ? "\\fP" : "\\fB") substr(text, i + 1)
  while (match(text, /\*[A-Za-z]+\*/))
    text = substr(text, 1, RSTART - 1) "\\fI" substr(text, RSTART + 1, RLENGTH - 2) "\\fP" substr(text, RSTART + RLENGTH)
  return (text ~ /^[.']/ ? "\\&" : "") text
}
function end() {
  if (list) print ".El"
  list = ""
}
function item(kind, head) {
  if (list != kind) print (list ? ".El\n" : "") ".Bl " kind
  print ".It" head
  list = kind
  gap = 0
}
/^# / { end(); print ".Sh " substr($0, 3); begun = gap = 0; next }
/^$/ { gap = begun; next }
/^- .* :: / { i = index($0, " :: "); item("-tag -width Ds", " " inline(substr($0, 3, i - 3))); $0 = substr($0, i + 4) }
/^- / { item("-bullet"); $0 = substr($0, 3) }
gap { end(); print ".Pp" }
{ begun = 1; gap = 0 }
/^    / { gsub(/"/, "\\(dq"); sub(/^ +/, ".Dl "); print; next }
{ sub(/^ +/, ""); print inline($0) }
END { end() }
