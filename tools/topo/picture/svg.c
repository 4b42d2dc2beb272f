/* SPDX-License-Identifier: Apache-2.0
 * Writes a layout as one self-contained SVG file: no scripts, no style sheets, only installed fonts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/picture/layout.h"

/* ---- colours ----------------------------------------------------------------------------------------------------- */

/* Lines and texts. Rails have Okabe and Ito's colours, which nearly all eyes can tell apart; two darker ones replace
 * yellow and black. All are dark enough for a print without colours, where widths and dashes distinguish lines. */
static const char *const colours[TOPO_COLOURS] = {
    [TOPO_COLOUR_TEXT] = "#1a1a1a",     [TOPO_COLOUR_DIM] = "#555555",      [TOPO_COLOUR_NVLINK] = "#2f6b3a",
    [TOPO_COLOUR_XGMI] = "#8a4a12",     [TOPO_COLOUR_SYS] = "#8c96a6",      [TOPO_COLOUR_NET] = "#5a6472",
    [TOPO_COLOUR_SLOW] = "#c22f00",     [TOPO_COLOUR_RAIL] = "#0072b2",     [TOPO_COLOUR_RAIL + 1] = "#d55e00",
    [TOPO_COLOUR_RAIL + 2] = "#009e73", [TOPO_COLOUR_RAIL + 3] = "#b5568b", [TOPO_COLOUR_RAIL + 4] = "#3a94cf",
    [TOPO_COLOUR_RAIL + 5] = "#c08300", [TOPO_COLOUR_RAIL + 6] = "#882255", [TOPO_COLOUR_RAIL + 7] = "#6b6b00"};

/* Boxes: fill, edge (NULL: the box's own colour), its width and the radius of corners. */
typedef struct box_style {
  const char *fill, *stroke;
  double width, radius;
} box_style;

static const box_style styles[TOPO_BOX_KINDS] = {
    [TOPO_BOX_HOST] = {"#ffffff", "#3c3c3c", 1.2, 10}, [TOPO_BOX_AREA] = {"#f1f4f8", "#b9c3d0", 0.8, 5},
    [TOPO_BOX_PCI] = {"#fafbfc", "#9aa0a8", 0.8, 4},   [TOPO_BOX_MORE] = {"#fafafa", "#8a8a8a", 1, 8},
    [TOPO_BOX_STRIP] = {"#d6dee8", "#8c9aac", 0.8, 4}, [TOPO_BOX_GPU] = {"#dcebdd", "#2f6b3a", 1.2, 4},
    [TOPO_BOX_NIC] = {"#fbeed3", "#9a6a00", 1, 4},     [TOPO_BOX_BAR] = {"#eef6ef", NULL, 1.6, 5},
    [TOPO_BOX_SWITCH] = {"#ffffff", NULL, 1.6, 5},     [TOPO_BOX_RAIL] = {"#ffffff", NULL, 1.4, 5}};

typedef struct badge_style {
  const char *fill, *text;
} badge_style;

static const badge_style badges[] = {[BNY_TOPO_INFO] = {"#44546a", "#ffffff"},
                                     [BNY_TOPO_WARNING] = {"#ffb000", "#1a1a1a"},
                                     [BNY_TOPO_FAULT] = {"#b3001b", "#ffffff"}};

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* A coordinate in tenths, independent of the locale. */
typedef struct coordinate {
  char text[32];
} coordinate;

static coordinate at(double value) {
  coordinate c;
  long long tenths = llround(value * 10);
  const char *sign = tenths < 0 ? "-" : "";
  tenths = llabs(tenths);
  if (tenths % 10 == 0)
    snprintf(c.text, sizeof c.text, "%s%lld", sign, tenths / 10);
  else
    snprintf(c.text, sizeof c.text, "%s%lld.%lld", sign, tenths / 10, tenths % 10);
  return c;
}

static bool continues(const unsigned char *text, size_t bytes) {
  for (size_t i = 1; i < bytes; i++) {
    if ((text[i] & 0xc0) != 0x80) return false;
  }
  return true;
}

/* Returns the length of a UTF-8 character that XML allows; 0 for anything else. */
static size_t sound(const unsigned char *text) {
  size_t bytes = *text < 0x80 ? 1 : *text < 0xc2 ? 0 : *text < 0xe0 ? 2 : *text < 0xf0 ? 3 : *text < 0xf5 ? 4 : 0;
  if (bytes == 0 || !continues(text, bytes) || (bytes == 1 && *text < ' ' && *text != '\n' && *text != '\t')) return 0;
  unsigned code = bytes == 1 ? *text : *text & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; i++) code = code << 6 | (text[i] & 0x3f);
  bool long_form = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  bool unfit = (code >= 0xd800 && code < 0xe000) || code > 0x10ffff || (code & 0xfffe) == 0xfffe;
  return long_form || unfit ? 0 : bytes;
}

static void put_text(FILE *out, const char *text) {
  const unsigned char *c = (const unsigned char *)text;
  while (*c) {
    size_t bytes = sound(c);
    const char *entity = *c == '&' ? "&amp;" : *c == '<' ? "&lt;" : *c == '>' ? "&gt;" : *c == '"' ? "&quot;" : NULL;
    if (entity)
      fputs(entity, out);
    else if (bytes == 0)
      fputc('?', out);
    else
      fwrite(c, 1, bytes, out);
    c += bytes > 0 ? bytes : 1;
  }
}

static void put_tip(FILE *out, const char *tip) {
  if (!tip) return;
  fputs("<title>", out);
  put_text(out, tip);
  fputs("</title>", out);
}

static void put_box(FILE *out, const topo_box *box) {
  const box_style *style = &styles[box->kind];
  const char *stroke = style->stroke ? style->stroke : colours[box->colour];
  double radius = fmin(style->radius, fmin(box->width, box->height) / 2);
  fprintf(out, "<g>");
  put_tip(out, box->tip);
  fprintf(out,
          "<rect x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" rx=\"%s\" fill=\"%s\" stroke=\"%s\" stroke-width=\"%s\"",
          at(box->x).text, at(box->y).text, at(box->width).text, at(box->height).text, at(radius).text, style->fill,
          stroke, at(style->width).text);
  if (box->dashed) fputs(" stroke-dasharray=\"4 3\"", out);
  fputs("/></g>\n", out);
}

static void put_path(FILE *out, const topo_line *line) {
  fprintf(out, "d=\"M%s %s", at(line->x[0]).text, at(line->y[0]).text);
  if (line->arc)
    fprintf(out, "C%s %s %s %s %s %s", at(line->x[1]).text, at(line->y[1]).text, at(line->x[2]).text,
            at(line->y[2]).text, at(line->x[3]).text, at(line->y[3]).text);
  for (int32_t i = 1; !line->arc && i < line->npoints; i++)
    fprintf(out, "L%s %s", at(line->x[i]).text, at(line->y[i]).text);
  fputc('"', out);
}

static void put_line(FILE *out, const topo_line *line) {
  fputs("<g fill=\"none\">", out);
  put_tip(out, line->tip);
  if (line->over) {
    fputs("<path ", out);
    put_path(out, line);
    fprintf(out, " stroke=\"#ffffff\" stroke-width=\"%s\"/>", at(line->width + 2.4).text);
  }
  fputs("<path ", out);
  put_path(out, line);
  fprintf(out, " stroke=\"%s\" stroke-width=\"%s\"", colours[line->colour], at(line->width).text);
  /* Dashes would cut a wide line into pieces, so they are drawn within it. */
  bool wide = line->width > 2.6;
  if (line->dashed && !wide) fputs(" stroke-dasharray=\"4 2.5\"", out);
  fputs("/>", out);
  if (line->dashed && wide) {
    fputs("<path ", out);
    put_path(out, line);
    fprintf(out, " stroke=\"#ffffff\" stroke-width=\"%s\" stroke-dasharray=\"4 3\"/>", at(line->width / 3).text);
  }
  fputs("</g>\n", out);
}

static void put_junction(FILE *out, const topo_line *line) {
  int32_t end = line->npoints - 1;
  fprintf(out, "<circle cx=\"%s\" cy=\"%s\" r=\"2.4\" fill=\"%s\"/>\n", at(line->x[end]).text, at(line->y[end]).text,
          colours[line->colour]);
}

static void put_label(FILE *out, const topo_label *label) {
  static const char *const anchors[] = {"start", "middle", "end"};
  if (label->backed) {
    double left = label->x - (label->anchor == TOPO_ANCHOR_MIDDLE ? label->width / 2
                              : label->anchor == TOPO_ANCHOR_END  ? label->width
                                                                  : 0);
    fprintf(out, "<rect x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" fill=\"#ffffff\"/>", at(left - 1.5).text,
            at(label->y - 0.85 * label->size).text, at(label->width + 3).text, at(1.1 * label->size).text);
  }
  fprintf(out, "<text x=\"%s\" y=\"%s\" font-size=\"%s\"", at(label->x).text, at(label->y).text, at(label->size).text);
  if (label->anchor != TOPO_ANCHOR_START) fprintf(out, " text-anchor=\"%s\"", anchors[label->anchor]);
  if (label->bold) fputs(" font-weight=\"bold\"", out);
  if (label->colour != TOPO_COLOUR_TEXT) fprintf(out, " fill=\"%s\"", colours[label->colour]);
  fputc('>', out);
  put_text(out, label->text);
  fputs("</text>\n", out);
}

static void put_badge(FILE *out, const topo_badge *badge) {
  const badge_style *style = &badges[badge->severity];
  fprintf(out, "<circle cx=\"%s\" cy=\"%s\" r=\"%d\" fill=\"%s\" stroke=\"#ffffff\" stroke-width=\"1.2\"/>",
          at(badge->x).text, at(badge->y).text, TOPO_BADGE_RADIUS, style->fill);
  fprintf(
      out,
      "<text x=\"%s\" y=\"%s\" font-size=\"%s\" font-weight=\"bold\" text-anchor=\"middle\" fill=\"%s\">%d</text>\n",
      at(badge->x).text, at(badge->y + 3).text, badge->number > 9 ? "7.5" : "8.5", style->text, badge->number);
}

static bool is_background(const topo_box *box) { return box->kind <= TOPO_BOX_MORE; }

static void put_head(FILE *out, const topo_layout *layout, const topo_view *view) {
  fprintf(out,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%s\" height=\"%s\" viewBox=\"0 0 %s %s\" role=\"img\" "
          "aria-labelledby=\"title desc\" font-family=\"Helvetica, Arial, 'Liberation Sans', sans-serif\" "
          "fill=\"%s\">\n",
          at(layout->width).text, at(layout->height).text, at(layout->width).text, at(layout->height).text,
          colours[TOPO_COLOUR_TEXT]);
  fputs("<title id=\"title\">", out);
  put_text(out, layout->title);
  fputs("</title>\n<desc id=\"desc\">", out);
  put_text(out, layout->summary);
  for (int32_t i = 0; i < view->levels->nfindings; i++) {
    fprintf(out, "\n%d. %s: ", i + 1, bny_topo_severity_name(view->levels->findings[i].severity));
    put_text(out, view->levels->findings[i].text);
  }
  fprintf(out, "</desc>\n<rect width=\"%s\" height=\"%s\" fill=\"#ffffff\"/>\n", at(layout->width).text,
          at(layout->height).text);
}

char *topo_view_svg(const topo_view *view, tool_error *error) {
  topo_layout *layout = topo_layout_new(view, error);
  if (!layout) return NULL;
  char *text = NULL;
  size_t bytes;
  FILE *out = open_memstream(&text, &bytes);
  bool good = out != NULL;
  if (good) {
    put_head(out, layout, view);
    /* From back to front: frames, lines, devices, lines that cross, texts, badges. */
    for (int32_t i = 0; i < layout->nboxes; i++)
      if (is_background(&layout->boxes[i])) put_box(out, &layout->boxes[i]);
    for (int32_t i = 0; i < layout->nlines; i++)
      if (!layout->lines[i].over) put_line(out, &layout->lines[i]);
    for (int32_t i = 0; i < layout->nboxes; i++)
      if (!is_background(&layout->boxes[i])) put_box(out, &layout->boxes[i]);
    for (int32_t i = 0; i < layout->nlines; i++)
      if (layout->lines[i].over) put_line(out, &layout->lines[i]);
    for (int32_t i = 0; i < layout->nlines; i++)
      if (layout->lines[i].junction) put_junction(out, &layout->lines[i]);
    for (int32_t i = 0; i < layout->nlabels; i++) put_label(out, &layout->labels[i]);
    for (int32_t i = 0; i < layout->nbadges; i++) put_badge(out, &layout->badges[i]);
    fputs("</svg>\n", out);
    good = !ferror(out);
    good = fclose(out) == 0 && good;
  }
  topo_layout_free(layout);
  if (good) return text;
  free(text);
  tool_error_set(error, "no memory for the picture");
  return NULL;
}
