/* SPDX-License-Identifier: Apache-2.0
 * Pictures of topologies. Nothing overlaps or is cut, no text is wider than its box, names differ, and all findings are
 * listed. Each GPU and NIC of a drawn host appears once. The output is valid XML or a valid graph, whatever names a
 * model has. Two SVGs are compared with goldens in tests/topologies, which BANYAN_UPDATE_GOLDENS=1 rewrites. */
#ifdef HAVE_LIBXML2
#include <libxml/parser.h>
#endif

#include "tools/topo/picture/layout.h"
#include "tests/topo/topo_util.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static const char *said; /* name of the current input, for messages */

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

typedef struct span {
  double left, top, right, bottom;
} span;

static bool overlap(span a, span b, double slack) {
  return a.left + slack < b.right && b.left + slack < a.right && a.top + slack < b.bottom && b.top + slack < a.bottom;
}

static span span_of_box(const topo_box *box) {
  return (span){box->x, box->y, box->x + box->width, box->y + box->height};
}

static span span_of_label(const topo_label *label) {
  double part = label->anchor == TOPO_ANCHOR_MIDDLE ? 0.5 : label->anchor == TOPO_ANCHOR_END ? 1 : 0;
  double left = label->x - part * label->width;
  return (span){left, label->y - 0.72 * label->size, left + label->width, label->y + 0.2 * label->size};
}

/* Frames may contain other boxes. Other boxes must not overlap. */
static bool is_frame(topo_box_kind kind) { return kind <= TOPO_BOX_MORE; }

static bool within(span inner, span outer) {
  return inner.left >= outer.left - 0.05 && inner.right <= outer.right + 0.05 && inner.top >= outer.top - 0.05 &&
         inner.bottom <= outer.bottom + 0.05;
}

static void check_boxes(const topo_layout *layout) {
  for (int32_t i = 0; i < layout->nboxes; i++) {
    const topo_box *own = &layout->boxes[i];
    span page = {0, 0, layout->width, layout->height}, here = span_of_box(own);
    ck_assert_msg(own->width > 0 && own->height > 0 && within(here, page),
                  "%s: box %d (kind %d, node %d) is not within the page", said, i, (int)own->kind, own->node);
    for (int32_t j = 0; j < i; j++) {
      const topo_box *other = &layout->boxes[j];
      /* Two boxes are apart, or one is a frame that contains the other. */
      bool apart = !overlap(here, span_of_box(other), 0.05);
      bool inside = (is_frame(own->kind) && within(span_of_box(other), here)) ||
                    (is_frame(other->kind) && within(here, span_of_box(other)));
      ck_assert_msg(apart || inside, "%s: boxes %d and %d (kinds %d and %d, nodes %d and %d) overlap", said, i, j,
                    (int)own->kind, (int)other->kind, own->node, other->node);
    }
  }
}

static void check_labels(const topo_layout *layout) {
  for (int32_t i = 0; i < layout->nlabels; i++) {
    const topo_label *label = &layout->labels[i];
    span own = span_of_label(label);
    ck_assert_msg(own.left >= 0 && own.top >= 0 && own.right <= layout->width && own.bottom <= layout->height,
                  "%s: the text \"%s\" is cut", said, label->text);
    ck_assert_msg(label->size >= 9, "%s: the text \"%s\" is too small to read", said, label->text);
    for (int32_t j = 0; j < i; j++)
      ck_assert_msg(!overlap(own, span_of_label(&layout->labels[j]), 0.3), "%s: the texts \"%s\" and \"%s\" overlap",
                    said, label->text, layout->labels[j].text);
    for (int32_t j = 0; j < layout->nboxes; j++) {
      span box = span_of_box(&layout->boxes[j]);
      bool arc = label->backed && is_frame(layout->boxes[j].kind);
      ck_assert_msg(arc || !overlap(own, box, 0.05) || within(own, box),
                    "%s: the text \"%s\" crosses the edge of a box of kind %d", said, label->text,
                    (int)layout->boxes[j].kind);
    }
  }
}

/* Drawn hosts and switches with different names must keep different names. */
static void check_names(const bny_topo *topo, const topo_layout *layout) {
  for (int32_t i = 0; i < layout->nboxes; i++) {
    const topo_box *own = &layout->boxes[i];
    if (own->kind != TOPO_BOX_SWITCH) continue;
    for (int32_t j = 0; j < i; j++) {
      const topo_box *other = &layout->boxes[j];
      if (other->kind != own->kind || strcmp(topo->nodes[own->node].name, topo->nodes[other->node].name) == 0) continue;
      if (fabs(own->y - other->y) > 1) continue; /* names are shortened per tier */
      const char *names[2] = {NULL, NULL};
      for (int32_t l = layout->nlabels - 1; l >= 0; l--) {
        span at = span_of_label(&layout->labels[l]);
        if (within(at, span_of_box(own))) names[0] = layout->labels[l].text;
        if (within(at, span_of_box(other))) names[1] = layout->labels[l].text;
      }
      ck_assert_msg(names[0] && names[1] && strcmp(names[0], names[1]) != 0,
                    "%s: the switches %s and %s are both named \"%s\"", said, topo->nodes[own->node].name,
                    topo->nodes[other->node].name, names[0] ? names[0] : "");
    }
  }
}

/* Each finding is listed with its number, or counted in a line that refers to the full list. */
static void check_findings(const bny_topo_levels *levels, const topo_layout *layout) {
  int32_t listed = 0, counted = 0;
  for (int32_t i = 0; i < layout->nbadges; i++)
    if (layout->badges[i].x < 40) listed = layout->badges[i].number > listed ? layout->badges[i].number : listed;
  for (int32_t i = 0; i < layout->nlabels; i++)
    if (strstr(layout->labels[i].text, "banyan-topo --check")) counted = atoi(layout->labels[i].text + 4);
  ck_assert_msg(listed + counted == levels->nfindings, "%s: %d of %d findings are listed, and %d counted", said, listed,
                levels->nfindings, counted);
}

static void check_line_clear(const topo_layout *layout, const topo_stroke *line, int32_t at) {
  span own = {fmin(line->x[at], line->x[at + 1]), fmin(line->y[at], line->y[at + 1]),
              fmax(line->x[at], line->x[at + 1]), fmax(line->y[at], line->y[at + 1])};
  for (int32_t i = 0; i < layout->nboxes; i++) {
    topo_box_kind kind = layout->boxes[i].kind;
    if (kind != TOPO_BOX_GPU && kind != TOPO_BOX_NIC) continue;
    span box = span_of_box(&layout->boxes[i]);
    bool crosses = own.left < box.right - 0.5 && own.right > box.left + 0.5 && own.top < box.bottom - 0.5 &&
                   own.bottom > box.top + 0.5;
    ck_assert_msg(!crosses, "%s: a line of colour %d runs through node %d", said, (int)line->colour,
                  layout->boxes[i].node);
  }
}

/* The shared line of switches that lead to hidden hosts must join the box for these hosts. */
static void check_joined(const topo_layout *layout, const topo_stroke *line) {
  bool joined =
      line->colour != TOPO_COLOUR_DIM || line->npoints != 2 || line->y[0] < line->y[1] || line->y[0] > line->y[1];
  for (int32_t i = 0; i < layout->nlines && !joined; i++) {
    const topo_stroke *up = &layout->lines[i];
    bool meets = up->junction && fabs(up->y[1] - line->y[0]) < 0.1 && up->x[1] >= fmin(line->x[0], line->x[1]) - 0.1 &&
                 up->x[1] <= fmax(line->x[0], line->x[1]) + 0.1;
    for (int32_t b = 0; b < layout->nboxes && meets && !joined; b++) {
      const topo_box *box = &layout->boxes[b];
      joined = box->kind == TOPO_BOX_MORE && fabs(box->y - up->y[0]) < 0.1 && box->x < up->x[0] &&
               box->x + box->width > up->x[0];
    }
  }
  ck_assert_msg(joined, "%s: a line from %g to %g at %g joins nothing", said, line->x[0], line->x[1], line->y[0]);
}

static void check_lines(const topo_layout *layout) {
  for (int32_t i = 0; i < layout->nlines; i++) {
    const topo_stroke *line = &layout->lines[i];
    for (int32_t p = 0; p < line->npoints; p++)
      ck_assert_msg(line->x[p] >= 0 && line->x[p] <= layout->width && line->y[p] <= layout->height &&
                        line->y[p] >= -1e4,
                    "%s: line %d leaves the page", said, i);
    for (int32_t p = 0; p + 1 < line->npoints && !line->arc; p++)
      if (line->colour != TOPO_COLOUR_NET) check_line_clear(layout, line, p); /* network lines are above hosts */
    check_joined(layout, line);
  }
}

/* Every GPU and NIC of a drawn host, or of no host, is drawn once. Devices of other hosts are not drawn. */
static void check_devices(const bny_topo *topo, const topo_layout *layout) {
  int32_t *drawn = calloc((size_t)topo->nnodes + 1, sizeof *drawn);
  bool *host = calloc((size_t)topo->nnodes + 1, sizeof *host), orphans = false;
  ck_assert(drawn && host);
  for (int32_t i = 0; i < layout->nboxes; i++) {
    const topo_box *box = &layout->boxes[i];
    if (box->kind == TOPO_BOX_HOST && box->node >= 0) host[box->node] = true;
    orphans = orphans || (box->kind == TOPO_BOX_HOST && box->node < 0);
    if ((box->kind == TOPO_BOX_GPU || box->kind == TOPO_BOX_NIC) && box->node >= 0) drawn[box->node]++;
  }
  for (int32_t n = 0; n < topo->nnodes; n++) {
    bny_topo_kind kind = topo->nodes[n].kind;
    if (kind != BNY_TOPO_GPU && kind != BNY_TOPO_NIC) continue;
    int32_t own = bny_topo_ancestor(topo, n, BNY_TOPO_HOST);
    int32_t wanted = own >= 0 ? host[own] : orphans;
    ck_assert_msg(drawn[n] == wanted, "%s: node %d (%s) is drawn %d times, not %d", said, n, topo->nodes[n].name,
                  drawn[n], wanted);
  }
  free(drawn);
  free(host);
}

/* ---- output files ------------------------------------------------------------------------------------------------ */

#ifdef HAVE_LIBXML2
static double number_of(xmlNode *node, const char *name) {
  xmlChar *text = xmlGetProp(node, (const xmlChar *)name);
  double value = text ? strtod((const char *)text, NULL) : 0;
  xmlFree(text);
  return value;
}

static bool attribute_is(xmlNode *node, const char *name, const char *value) {
  xmlChar *text = xmlGetProp(node, (const xmlChar *)name);
  bool is = text && strcmp((const char *)text, value) == 0;
  xmlFree(text);
  return is;
}

/* Returns the WCAG contrast between a text's colour and the darkest box that holds devices. */
static double contrast_of(xmlNode *text) {
  xmlChar *fill = xmlGetProp(text, (const xmlChar *)"fill");
  unsigned rgb = fill ? (unsigned)strtoul((const char *)fill + 1, NULL, 16) : 0;
  xmlFree(fill);
  double light = 0;
  static const double weights[] = {0.0722, 0.7152, 0.2126};
  for (int c = 0; c < 3; c++, rgb >>= 8) {
    double part = (rgb & 255) / 255.0;
    light += weights[c] * (part <= 0.03928 ? part / 12.92 : pow((part + 0.055) / 1.055, 2.4));
  }
  static const double ground = 0.798; /* luminance of #dcebdd */
  return (ground + 0.05) / (light + 0.05);
}

/* Each text is dark enough, and stays within the sides of the boxes in which it starts. */
static void check_svg_text(xmlNode *root, xmlNode *text) {
  xmlChar *words = xmlNodeGetContent(text);
  double size = number_of(text, "font-size"), x = number_of(text, "x"), y = number_of(text, "y");
  double width = topo_text_width((const char *)words, size, attribute_is(text, "font-weight", "bold"));
  double left =
      x - width * (attribute_is(text, "text-anchor", "middle") ? 0.5 : attribute_is(text, "text-anchor", "end"));
  if (!attribute_is(text, "fill", "#ffffff")) /* except numbers of badges */
    ck_assert_msg(contrast_of(text) >= 4.5, "%s: \"%s\" is too pale", said, (const char *)words);
  for (xmlNode *group = root->children; group; group = group->next) {
    xmlNode *box = group->children ? xmlLastElementChild(group) : NULL;
    if (!box || strcmp((const char *)box->name, "rect") != 0) continue;
    double start = number_of(box, "x"), end = start + number_of(box, "width"), top = number_of(box, "y");
    if (x < start || x > end || y < top || y > top + number_of(box, "height")) continue;
    bool backed = text->prev && strcmp((const char *)text->prev->name, "rect") == 0; /* a text on an arc */
    bool badge = strlen((const char *)words) <= 3 && size < 9;
    ck_assert_msg(backed || badge || (left >= start - 0.2 && left + width <= end + 0.2),
                  "%s: \"%s\" at %.1f,%.1f is %.1f wide, its box %.1f at %.1f,%.1f", said, (const char *)words, x, y,
                  width, end - start, start, top);
  }
  xmlFree(words);
}
#endif

static void check_svg(const char *svg) {
  ck_assert_msg(strncmp(svg, "<svg ", 5) == 0, "%s: begins otherwise", said);
  ck_assert_msg(!strstr(svg, "=\"nan") && !strstr(svg, "=\"-nan") && !strstr(svg, "=\"inf"),
                "%s: holds what is no number", said);
#ifdef HAVE_LIBXML2
  xmlDoc *doc = xmlReadMemory(svg, (int)strlen(svg), "picture.svg", NULL,
                              XML_PARSE_NONET | XML_PARSE_NOERROR | XML_PARSE_NOWARNING | XML_PARSE_HUGE);
  ck_assert_msg(doc != NULL, "%s: is no XML", said);
  xmlNode *root = xmlDocGetRootElement(doc);
  for (xmlNode *node = root->children; node; node = node->next)
    if (node->name && strcmp((const char *)node->name, "text") == 0) check_svg_text(root, node);
  xmlFreeDoc(doc);
#endif
}

typedef char *view_function(const topo_view *view);

static char *written(view_function *view_as, const topo_view *view) {
  char *text = view_as(view);
  ck_assert_msg(strcmp(text, view_as(view)) == 0, "%s: is not the same twice", said);
  return text;
}

static void check_model(const bny_topo *topo, const char *title) {
  bny_topo_levels *levels = topo_derive(topo);
  topo_view view = {.topo = topo, .levels = levels, .title = title};
  said = title;
  topo_layout *layout = topo_layout_new(&view);
  check_boxes(layout);
  check_labels(layout);
  check_names(topo, layout);
  check_findings(levels, layout);
  check_lines(layout);
  check_devices(topo, layout);
  check_svg(written(topo_view_svg, &view));
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

TEST_RANDOM(of_this_tree, OWN_TOPOLOGIES) {
  bny_topo *topo = load_own(own_topologies[_i]);
  if (topo != NULL) check_model(topo, own_topologies[_i]);
}

static void visit_dump(const char *path, const char *name) {
  static int dumps;
  if (sanitizer_leaves_out(dumps++)) return;
  bny_topo_error error = {0};
  bny_topo *topo = topo_load(path, NULL, &error);
  if (topo != NULL) check_model(topo, name); /* the tests of importers cover rejected files */
}

static const char *const folders[] = {"nccl", "hwloc", "nvidia-smi", "matrix", "fabric", "examined"};

TEST_LOOP(real_topologies, COUNT(folders)) { each_dump(folders[_i], "", visit_dump); }

static const char *const descriptions[] = {
    "spine:2 leaf:8 host:12 gpu:8 nic@400g",
    "gpu",
    "nic",
    "host",
    "host:3",
    "host package:2 numa:4",
    "host:2 nvswitch gpu:8 nic:8@400g",
    "fabric:2 host:8 nvswitch gpu:8 nic:8@400g",
    "spine:2 leaf:32@rails host:32 nvswitch gpu:8 nic:8@400g",
    "leaf:20 host:1 nic:2@2x100g",
    "leaf@rails host:2 package:2 pci:2 gpu:2 nic:7@2x200g",
    "leaf:4 nvswitch host:18 package:2 numa gpu:2@sm100@c2c nic:2@400g",
    "host package:2 numa:4 bridge:2 pci:2 pci pci gpu@sm90@gen5x16 nic@400g@gen5x16",
    "host package:8 nvlink@2 bridge pci gpu:3@gfx90a nic:5",
    "host xgmi@2 gpu:16@gfx942",
    "host package:2 gpu:4@c2c200GB@gen5x16 nic:2",
    "host nic:40",
    "host gpu:24 nic:3",
    "host:30 gpu nic@100g",
    "{\"nodes\": [{\"id\": \"h\", \"kind\": \"host\"}, {\"id\": \"g\", \"kind\": \"gpu\", \"parent\": \"h\", "
    "\"index\": 2147483647, \"compute\": 2147483647}]}"};

TEST_RANDOM(synthetic_topologies, COUNT(descriptions)) { check_model(load(descriptions[_i]), descriptions[_i]); }

/* The model replaces unprintable characters in names, but titles may contain them. */
TEST(hostile_names) {
  char wide[256], ideographs[256];
  memset(wide, 'W', 255);
  wide[255] = '\0';
  for (size_t i = 0; i < 85; i++) memcpy(ideographs + 3 * i, "\xe7\x95\x8c", 4);
  const char *names[] = {"<script>alert(1)</script>",
                         "a\"b'c&d;<!--",
                         "]]>",
                         "\\\"\\",
                         "line\nfeed",
                         "\xff\xfe\x80",
                         wide,
                         ideographs,
                         "x",
                         "%s%n",
                         "\xf0\x9f\x8e\xb2",
                         "{}[];->"};
  bny_topo *topo = topo_new();
  int32_t leaf = put(topo, BNY_TOPO_SWITCH, -1, wide, NULL);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    int32_t host = put(topo, BNY_TOPO_HOST, -1, names[i], NULL);
    int32_t package = put(topo, BNY_TOPO_PACKAGE, host, names[i], NULL),
            pci = put(topo, BNY_TOPO_PCI, package, names[i], NULL);
    int32_t gpu = put(topo, BNY_TOPO_GPU, pci, names[i], NULL), nic = put(topo, BNY_TOPO_NIC, pci, names[i], NULL);
    int32_t port = put(topo, BNY_TOPO_PORT, nic, names[i], NULL);
    bny_topo_set_string(topo, &topo->nodes[gpu].model, names[i]);
    bny_topo_set_string(topo, &topo->nodes[package].model, names[i]);
    join(topo, BNY_TOPO_LINK_NET, port, leaf, 50);
    join(topo, BNY_TOPO_LINK_PCI, gpu, pci, 0.123456789);
  }
  bny_topo_error error = {0};
  ck_assert_msg(bny_topo_check(topo, &error), "%s", error.text);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) check_model(topo, names[i]);
}

static void check_random(int which) {
  char title[64];
  bny_topo_error error = {0};
  bny_topo *topo = random_model(0x9e3779b97f4a7c15u * (uint64_t)(which + 1), 60, 80);
  snprintf(title, sizeof title, "random model %d", which);
  if (bny_topo_check(topo, &error)) check_model(topo, title);
}

enum { MODELS_IN_ONE = 20 };

TEST_LOOP(random_models, 6) {
  for (int i = 0; i < MODELS_IN_ONE; i++) check_random(MODELS_IN_ONE * _i + i);
}

/* ---- facts that every picture shows ----------------------------------------------------------------------------- */

/* The widths are those of DejaVu Sans, in units of its font file. */
TEST(text_widths) {
  ck_assert_double_eq_tol(topo_text_width("GPU0", 1000, false), 774 + 603 + 731 + 636, 1);
  ck_assert_double_eq_tol(topo_text_width("mlx5_0", 1000, true), 1041 + 342 + 645 + 695 + 500 + 695, 1);
  ck_assert_double_le(topo_text_width("", 10, false), 0);
}

TEST(short_names) {
  const char *names[] = {"MF0;B09-P1-IBLEAF-02-08:MQM9701/U1", "MF0;B09-P1-IBLEAF-02-07:MQM9701/U1",
                         "MF0;A09-P1-IBLEAF-02-07:MQM9701/U1"};
  topo_text_fit_names(names, 3, 10, true, 70);
  ck_assert_str_eq(names[0], "B09\xe2\x80\xa6"
                             "08");
  ck_assert_str_eq(names[1], "B09\xe2\x80\xa6"
                             "07");
  ck_assert_str_eq(names[2], "A09\xe2\x80\xa6"
                             "07");
  const char *alike[] = {"aaaaaaaaaaaaaaaaXaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaaYaaaaaaaaaaaaaaaa"};
  topo_text_fit_names(alike, 2, 10, true, 70);
  ck_assert_str_ne(alike[0], alike[1]);
  for (int i = 0; i < 2; i++) ck_assert_double_le(topo_text_width(alike[i], 10, true), 70);
  const char *whole[] = {"n1", "n2"};
  topo_text_fit_names(whole, 2, 10, true, 70);
  ck_assert_str_eq(whole[1], "n2");
}

/* Adds a fault about a node, as topo_derive() does. */
static void add_fault(bny_topo_levels *levels, int32_t node) {
  if (levels->nfindings == levels->findings_capacity) {
    levels->findings_capacity = 2 * levels->findings_capacity + 8;
    levels->findings = realloc(levels->findings, (size_t)levels->findings_capacity * sizeof *levels->findings);
    ck_assert_ptr_nonnull(levels->findings);
  }
  levels->findings[levels->nfindings++] =
      (bny_topo_finding){.severity = BNY_TOPO_FAULT, .node = node, .text = strdup("it is broken")};
}

/* Returns the layout with faults about some nodes, after running all checks. */
static topo_layout *faulty_layout(const bny_topo *topo, const int32_t *nodes, int32_t count) {
  bny_topo_levels *levels = topo_derive(topo);
  for (int32_t i = 0; i < count; i++) add_fault(levels, nodes[i]);
  topo_view view = {.topo = topo, .levels = levels, .title = "faults"};
  said = "faults";
  topo_layout *layout = topo_layout_new(&view);
  check_boxes(layout);
  check_labels(layout);
  check_findings(levels, layout);
  return layout;
}

static bool has_box(const topo_layout *layout, topo_box_kind kind, int32_t node) {
  for (int32_t i = 0; i < layout->nboxes; i++)
    if (layout->boxes[i].kind == kind && layout->boxes[i].node == node) return true;
  return false;
}

static int32_t count_labels(const topo_layout *layout, const char *text) {
  int32_t count = 0;
  for (int32_t i = 0; i < layout->nlabels; i++) count += strcmp(layout->labels[i].text, text) == 0;
  return count;
}

/* The faulty switch and host are drawn, even though earlier ones fill the picture. */
TEST(faulty_ones_are_drawn) {
  bny_topo *topo = load("leaf:40 host:4 gpu nic@400g");
  int32_t leaf = bny_topo_find_name(topo, BNY_TOPO_SWITCH, "leaf37");
  int32_t host = bny_topo_find_name(topo, BNY_TOPO_HOST, "host101");
  ck_assert(leaf >= 0 && host >= 0);
  topo_layout *layout = faulty_layout(topo, NULL, 0);
  ck_assert(!has_box(layout, TOPO_BOX_SWITCH, leaf) && !has_box(layout, TOPO_BOX_HOST, host));
  layout = faulty_layout(topo, (int32_t[]){leaf, host}, 2);
  ck_assert(has_box(layout, TOPO_BOX_SWITCH, leaf) && has_box(layout, TOPO_BOX_HOST, host));
}

/* One of a leaf's links to two spines is slow, and only this link is red. Drawn hosts are on different switches. */
TEST(one_bad_trunk) {
  bny_topo *topo = load("leaf:8 host:12 gpu nic@400g");
  int32_t spines[2] = {bny_topo_find_name(topo, BNY_TOPO_SWITCH, "spine0"),
                       put(topo, BNY_TOPO_SWITCH, -1, "spine1", NULL)};
  for (int32_t l = 0; l < topo->nlinks; l++)
    if (topo->links[l].from == spines[0] || topo->links[l].to == spines[0]) topo->links[l].gbytes_per_s = 200;
  for (int i = 0; i < 8; i++) {
    int32_t leaf = bny_topo_find_name(topo, BNY_TOPO_SWITCH, numbered("leaf", i));
    ck_assert_int_ge(leaf, 0);
    join(topo, BNY_TOPO_LINK_NET, leaf, spines[1], i == 3 ? 100 : 200);
  }
  topo_layout *layout = faulty_layout(topo, NULL, 0);
  int32_t slow = 0, leaves = 0;
  for (int32_t i = 0; i < layout->nlines; i++) slow += layout->lines[i].colour == TOPO_COLOUR_SLOW;
  ck_assert_int_eq(slow, 2); /* the link and the line of the legend */
  check_lines(layout);
  for (int i = 0; i < 3; i++)
    leaves += has_box(layout, TOPO_BOX_HOST, bny_topo_find_name(topo, BNY_TOPO_HOST, numbered("host", 12 * i)));
  ck_assert_int_eq(leaves, 3);
}

TEST(many_findings) {
  bny_topo *topo = load("host:2 gpu:4 nic:4@400g");
  int32_t nodes[300];
  for (int32_t i = 0; i < 300; i++) nodes[i] = i % topo->nnodes;
  faulty_layout(topo, nodes, 20); /* check_findings() counts them */
  faulty_layout(topo, nodes, 300);
}

/* A mesh is one bar, and a pair without its link is marked. */
TEST(mesh_without_a_link) {
  for (int missing = 0; missing < 2; missing++) {
    bny_topo *topo = topo_new();
    int32_t host = put(topo, BNY_TOPO_HOST, -1, "host", NULL), gpus[8];
    for (int g = 0; g < 8; g++) gpus[g] = put(topo, BNY_TOPO_GPU, host, numbered("GPU", g), NULL);
    for (int a = 0; a < 8; a++) {
      for (int b = a + 1; b < 8; b++)
        if (!missing || a != 2 || b != 5) join(topo, BNY_TOPO_LINK_XGMI, gpus[a], gpus[b], 48);
    }
    topo_layout *layout = faulty_layout(topo, NULL, 0);
    ck_assert(has_box(layout, TOPO_BOX_BAR, -1));
    ck_assert_int_eq(count_labels(layout, "no link"), missing);
    ck_assert_int_eq(count_labels(layout, "7"), 8 - 2 * missing);
    ck_assert_int_eq(count_labels(layout, "6"), 2 * missing);
  }
}

/* A single host shows bus ids, PCIe, the NIC and rail of each GPU, and NUMA nodes. Several show only differences. */
TEST(details_of_one_host) {
  bny_topo *topo = load("host package:2 numa pci:2 gpu@sm90@gen5x16 nic@400g@gen5x16");
  topo_layout *layout = faulty_layout(topo, NULL, 0);
  static const char *const wanted[] = {"0000:02:00.0", "\xe2\x86\x92 NIC0 PIX", "rail 3", "Package 1, NUMA node 1"};
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
    ck_assert_msg(count_labels(layout, wanted[i]) > 0, "\"%s\" is not in the picture", wanted[i]);
  ck_assert_int_eq(count_labels(layout, "PCIe 48 GB/s"), 8);
}

/* ---- goldens ----------------------------------------------------------------------------------------------------- */

static const char *const golden[] = {"hgx-a100-4nic.txt", "spine-leaf.txt"};

TEST_LOOP(goldens, COUNT(golden)) {
  bny_topo *topo = load_own(golden[_i]);
  topo_view view = {.topo = topo, .levels = topo_derive(topo), .title = golden[_i]};
  ck_golden(golden[_i], ".svg", written(topo_view_svg, &view));
}

int main(void) { return suite_main(suite_with("topo_view", 60, NULL, drop_kept)); }
