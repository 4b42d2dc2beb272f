/* SPDX-License-Identifier: Apache-2.0
 * Writes a layout as one self-contained SVG file: no scripts, no style sheets, only installed fonts. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/topo.h"
#include "tools/topo/picture/layout.h"

/* ---- colours ----------------------------------------------------------------------------------------------------- */

/* Colours of lines and texts. Rails use the palette of Okabe and Ito for colour-blind readers, with its light colours
 * darkened. All are dark enough for a grey print, where widths and dashes distinguish lines. */
static const char *const colours[TOPO_COLOURS] = {
    [TOPO_COLOUR_TEXT] = "#1a1a1a",     [TOPO_COLOUR_DIM] = "#555555",      [TOPO_COLOUR_NVLINK] = "#2f6b3a",
    [TOPO_COLOUR_XGMI] = "#8a4a12",     [TOPO_COLOUR_SYS] = "#8c96a6",      [TOPO_COLOUR_NET] = "#5a6472",
    [TOPO_COLOUR_SLOW] = "#c22f00",     [TOPO_COLOUR_RAIL] = "#0072b2",     [TOPO_COLOUR_RAIL + 1] = "#d55e00",
    [TOPO_COLOUR_RAIL + 2] = "#009e73", [TOPO_COLOUR_RAIL + 3] = "#b5568b", [TOPO_COLOUR_RAIL + 4] = "#3a94cf",
    [TOPO_COLOUR_RAIL + 5] = "#c08300", [TOPO_COLOUR_RAIL + 6] = "#882255", [TOPO_COLOUR_RAIL + 7] = "#6b6b00"};

/* Styles of boxes: fill, stroke (NULL: the box's own colour), stroke width and corner radius. */
typedef struct box_style {
  const char *fill, *stroke;
  double width, radius;
} box_style;

static const box_style styles[TOPO_BOX_KINDS] = {
    [TOPO_BOX_HOST] = {"#ffffff", "#3c3c3c", 1.2, 10}, [TOPO_BOX_AREA] = {"#f1f4f8", "#b9c3d0", 0.8, 5},
    [TOPO_BOX_PCI] = {"#fafbfc", "#9aa0a8", 0.8, 4},   [TOPO_BOX_MORE] = {"#fafafa", "#8a8a8a", 1, 8},
    [TOPO_BOX_STRIP] = {"#d6dee8", "#8c9aac", 0.8, 4}, [TOPO_BOX_GPU] = {"#dcebdd", "#2f6b3a", 1.2, 4},
    [TOPO_BOX_NIC] = {"#fbeed3", "#9a6a00", 1, 4},     [TOPO_BOX_BAR] = {"#f3f7f3", NULL, 1.6, 5},
    [TOPO_BOX_SWITCH] = {"#ffffff", NULL, 1.6, 5},     [TOPO_BOX_RAIL] = {"#ffffff", NULL, 1.4, 5}};

typedef struct badge_style {
  const char *fill, *text;
} badge_style;

static const badge_style badges[] = {[BNY_TOPO_INFO] = {"#44546a", "#ffffff"},
                                     [BNY_TOPO_WARNING] = {"#ffb000", "#1a1a1a"},
                                     [BNY_TOPO_FAULT] = {"#b3001b", "#ffffff"}};

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void put_text(FILE *out, const char *text) {
  const unsigned char *c = (const unsigned char *)text;
  while (*c) {
    size_t bytes = bny_topo_character_bytes((const char *)c);
    bool control = *c < ' ' && *c != '\n' && *c != '\t',
         unfit = bytes == 3 && c[0] == 0xef && c[1] == 0xbf && c[2] > 0xbd;
    const char *entity = *c == '&' ? "&amp;" : *c == '<' ? "&lt;" : *c == '>' ? "&gt;" : *c == '"' ? "&quot;" : NULL;
    if (entity)
      fputs(entity, out);
    else if (bytes == 0 || control || unfit) /* not allowed in XML */
      fputc('?', out);
    else
      fwrite(c, 1, bytes, out);
    c += bytes > 0 ? bytes : 1;
  }
}

/* Writes a format: @ is a coordinate with one decimal in any locale, $ is a string, and ~ is a text to escape. */
static void put(FILE *out, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  for (; *format; format++) {
    if (*format == '@') {
      long long tenths = llround(va_arg(arguments, double) * 10), whole = llabs(tenths) / 10, rest = llabs(tenths) % 10;
      fprintf(out, rest ? "%s%lld.%lld" : "%s%lld", tenths < 0 ? "-" : "", whole, rest);
    } else if (*format == '$') {
      fputs(va_arg(arguments, const char *), out);
    } else if (*format == '~') {
      put_text(out, va_arg(arguments, const char *));
    } else {
      fputc(*format, out);
    }
  }
  va_end(arguments);
}

static void put_box(FILE *out, const topo_box *box) {
  const box_style *style = &styles[box->kind];
  put(out, "<rect x=\"@\" y=\"@\" width=\"@\" height=\"@\" rx=\"@\" fill=\"$\" stroke=\"$\" stroke-width=\"@\"$/>\n",
      box->x, box->y, box->width, box->height, fmin(style->radius, fmin(box->width, box->height) / 2), style->fill,
      style->stroke ? style->stroke : colours[box->colour], style->width,
      box->dashed ? " stroke-dasharray=\"4 3\"" : "");
}

static void put_path(FILE *out, const topo_stroke *line, const char *colour, double width, const char *dashes) {
  put(out, "<path d=\"M@ @", line->x[0], line->y[0]);
  for (int32_t i = 1; i < line->npoints; i++)
    put(out, line->arc ? i == 1 ? "C@ @" : " @ @" : "L@ @", line->x[i], line->y[i]);
  put(out, "\" stroke=\"$\" stroke-width=\"@\"$/>", colour, width, dashes);
}

static void put_line(FILE *out, const topo_stroke *line) {
  fputs("<g fill=\"none\">", out);
  bool wide = line->width > 2.6; /* dashes would cut a wide line into pieces, so they are drawn within it */
  if (line->over) put_path(out, line, "#ffffff", line->width + 2.4, "");
  put_path(out, line, colours[line->colour], line->width, line->dashed && !wide ? " stroke-dasharray=\"4 2.5\"" : "");
  if (line->dashed && wide) put_path(out, line, "#ffffff", line->width / 3, " stroke-dasharray=\"4 3\"");
  fputs("</g>\n", out);
}

static void put_label(FILE *out, const topo_label *label) {
  static const char *const anchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
  if (label->backed)
    put(out, "<rect x=\"@\" y=\"@\" width=\"@\" height=\"@\" fill=\"#ffffff\"/>",
        label->x - label->width * label->anchor / 2 - 1.5, label->y - 0.85 * label->size, label->width + 3,
        1.1 * label->size);
  put(out, "<text x=\"@\" y=\"@\" font-size=\"@\"$$ fill=\"$\">~</text>\n", label->x, label->y, label->size,
      anchors[label->anchor], label->bold ? " font-weight=\"bold\"" : "", colours[label->colour], label->text);
}

static void put_badge(FILE *out, const topo_badge *badge) {
  char number[16];
  snprintf(number, sizeof number, "%d", badge->number);
  put(out, "<circle cx=\"@\" cy=\"@\" r=\"@\" fill=\"$\" stroke=\"#ffffff\" stroke-width=\"1.2\"/>", badge->x, badge->y,
      (double)TOPO_BADGE_RADIUS, badges[badge->severity].fill);
  put(out, "<text x=\"@\" y=\"@\" font-size=\"@\" font-weight=\"bold\" text-anchor=\"middle\" fill=\"$\">$</text>\n",
      badge->x, badge->y + 3,
      badge->number > 99  ? 6
      : badge->number > 9 ? 7.5
                          : 8.5,
      badges[badge->severity].text, number);
}

static void put_head(FILE *out, const topo_layout *layout, const topo_view *view) {
  put(out,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"@\" height=\"@\" viewBox=\"0 0 @ @\" role=\"img\" "
      "aria-labelledby=\"title desc\" font-family=\"Helvetica, Arial, 'Liberation Sans', sans-serif\">\n"
      "<title id=\"title\">~</title>\n<desc id=\"desc\">~",
      layout->width, layout->height, layout->width, layout->height, layout->title, layout->summary);
  for (int32_t i = 0; i < view->levels->nfindings; i++) {
    fprintf(out, "\n%d. ", i + 1);
    put(out, "$: ~", bny_topo_severity_name(view->levels->findings[i].severity), view->levels->findings[i].text);
  }
  put(out, "</desc>\n<rect width=\"@\" height=\"@\" fill=\"#ffffff\"/>\n", layout->width, layout->height);
}

/* Writes from back to front: frames, lines, devices, lines that cross, junctions, texts, badges. */
static void put_layout(FILE *out, const topo_layout *layout) {
  for (int over = 0; over < 2; over++) {
    for (int32_t i = 0; i < layout->nboxes; i++)
      if ((layout->boxes[i].kind > TOPO_BOX_MORE) == over) put_box(out, &layout->boxes[i]);
    for (int32_t i = 0; i < layout->nlines; i++)
      if (layout->lines[i].over == over) put_line(out, &layout->lines[i]);
  }
  for (int32_t i = 0; i < layout->nlines; i++) {
    const topo_stroke *line = &layout->lines[i];
    if (line->junction)
      put(out, "<circle cx=\"@\" cy=\"@\" r=\"2.4\" fill=\"$\"/>\n", line->x[line->npoints - 1],
          line->y[line->npoints - 1], colours[line->colour]);
  }
  for (int32_t i = 0; i < layout->nlabels; i++) put_label(out, &layout->labels[i]);
  for (int32_t i = 0; i < layout->nbadges; i++) put_badge(out, &layout->badges[i]);
}

char *topo_view_svg(const topo_view *view) {
  topo_layout *layout = topo_layout_new(view);
  tool_page page;
  FILE *out = tool_page_begin(&page);
  put_head(out, layout, view);
  put_layout(out, layout);
  fputs("</svg>\n", out);
  return tool_page_end(&page);
}
