/* SPDX-License-Identifier: Apache-2.0
 * Reads untrusted XML through libxml2 into a flat list of elements. */
#include "tools/topo/import/xml.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 64, MOST_ELEMENTS = 1000000, MOST_ATTRIBUTES = 1500000, MOST_IN_ONE = 256 };

/* ---- the root, by a scan of the text ----------------------------------------------------------------------------- */

typedef struct cursor {
  const char *at, *end;
  int line;
} cursor;

static bool starts(const cursor *c, const char *prefix) {
  size_t bytes = strlen(prefix);
  return (size_t)(c->end - c->at) >= bytes && memcmp(c->at, prefix, bytes) == 0;
}

static void skip(cursor *c, size_t bytes) {
  for (; bytes > 0 && c->at < c->end; bytes--) c->line += *c->at++ == '\n';
}

static bool skip_past(cursor *c, const char *what) {
  while (c->at < c->end && !starts(c, what)) skip(c, 1);
  bool found = c->at < c->end;
  skip(c, strlen(what));
  return found;
}

/* Skips to the > of a DOCTYPE, or to the [ of its declarations. */
static void skip_doctype_name(cursor *c) {
  char quote = '\0';
  for (; c->at < c->end && (quote != '\0' || (*c->at != '>' && *c->at != '[')); skip(c, 1))
    if (quote != '\0')
      quote = *c->at == quote ? '\0' : quote;
    else if (*c->at == '"' || *c->at == '\'')
      quote = *c->at;
}

static bool skip_doctype(cursor *c) {
  skip_doctype_name(c);
  return (c->at == c->end || *c->at != '[' || skip_past(c, "]")) && skip_past(c, ">");
}

/* Skips a comment, CDATA or an instruction, of which *whole says whether it ends. Returns false if none begins here. */
static bool skip_content(cursor *c, bool *whole) {
  static const char *const marks[][2] = {{"<!--", "-->"}, {"<![CDATA[", "]]>"}, {"<?", "?>"}};
  for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
    if (!starts(c, marks[i][0])) continue;
    skip(c, strlen(marks[i][0]));
    *whole = skip_past(c, marks[i][1]);
    return true;
  }
  return false;
}

bool bny_topo_xml_root(const char *text, size_t bytes, char *name, size_t name_bytes, int *line) {
  cursor c = {.at = text, .end = text + bytes, .line = 1};
  if (starts(&c, "\xef\xbb\xbf")) skip(&c, 3);
  for (;;) {
    while (c.at < c.end && isspace((unsigned char)*c.at)) skip(&c, 1);
    bool whole = true;
    if (starts(&c, "<!DOCTYPE"))
      whole = skip_doctype(&c);
    else if (!skip_content(&c, &whole))
      break;
    if (!whole) return false;
  }
  if (!starts(&c, "<")) return false;
  c.at++;
  size_t length = 0;
  while (c.at + length < c.end && (isalnum((unsigned char)c.at[length]) || strchr("_-.:", c.at[length]) != NULL) &&
         c.at[length] != '\0')
    length++;
  if (length == 0 || length >= name_bytes || !(isalpha((unsigned char)c.at[0]) || c.at[0] == '_')) return false;
  memcpy(name, c.at, length);
  name[length] = '\0';
  *line = c.line;
  return true;
}

bool bny_topo_xml_root_is(const char *text, size_t bytes, const char *name) {
  char root[64];
  int line;
  return bny_topo_xml_root(text, bytes, root, sizeof root, &line) && strcmp(root, name) == 0;
}

/* ---- the whole file ---------------------------------------------------------------------------------------------- */

#ifdef HAVE_LIBXML2
#include <libxml/parser.h>
#else
typedef struct _xmlDoc *xmlDocPtr; /* built without libxml2 */
#endif

/* An element of libxml2's tree. Elements are numbered, so that a loop over the numbers visits all of them. */
typedef struct xml_element {
  const char *name, *text;
  const void *attributes;            /* an xmlAttr */
  int32_t parent, first, last, next; /* elements; -1 none */
  int line;
} xml_element;

struct bny_topo_xml {
  xmlDocPtr document;
  xml_element *elements;
  int32_t count;
};

int32_t bny_topo_xml_count(const bny_topo_xml *xml) { return xml->count; }

const char *bny_topo_xml_name(const bny_topo_xml *xml, int32_t element) { return xml->elements[element].name; }

bool bny_topo_xml_is(const bny_topo_xml *xml, int32_t element, const char *name) {
  return strcmp(bny_topo_xml_name(xml, element), name) == 0;
}

int bny_topo_xml_line(const bny_topo_xml *xml, int32_t element) { return xml->elements[element].line; }

int32_t bny_topo_xml_parent(const bny_topo_xml *xml, int32_t element) { return xml->elements[element].parent; }

int32_t bny_topo_xml_first(const bny_topo_xml *xml, int32_t element) { return xml->elements[element].first; }

int32_t bny_topo_xml_next(const bny_topo_xml *xml, int32_t element) { return xml->elements[element].next; }

int32_t bny_topo_xml_child(const bny_topo_xml *xml, int32_t element, const char *name) {
  int32_t child = bny_topo_xml_first(xml, element);
  while (child >= 0 && !bny_topo_xml_is(xml, child, name)) child = bny_topo_xml_next(xml, child);
  return child;
}

const char *bny_topo_xml_text(const bny_topo_xml *xml, int32_t element) { return xml->elements[element].text; }

bool bny_topo_xml_integer(const bny_topo_xml *xml, int32_t element, const char *name, int64_t least, int64_t most,
                          int64_t *value, bny_topo_error *error) {
  const char *text = bny_topo_xml_attribute(xml, element, name);
  if (text == NULL || *text == '\0') return true;
  char *end;
  errno = 0;
  long long parsed = strtoll(text, &end, 10);
  if (end == text || *end != '\0') {
    return bny_topo_fail(error, bny_topo_xml_line(xml, element), "<%.40s %s=\"%.40s\">: not a whole number",
                         bny_topo_xml_name(xml, element), name, text);
  }
  if (errno == ERANGE || parsed < least || parsed > most) {
    return bny_topo_fail(error, bny_topo_xml_line(xml, element), "<%.40s %s=\"%.40s\">: must be %lld to %lld",
                         bny_topo_xml_name(xml, element), name, text, (long long)least, (long long)most);
  }
  *value = parsed;
  return true;
}

#ifndef HAVE_LIBXML2

bool bny_topo_xml_available(void) { return false; }

void bny_topo_xml_free(bny_topo_xml *xml) { free(xml); }

const char *bny_topo_xml_attribute(const bny_topo_xml *xml, int32_t element, const char *name) {
  (void)xml, (void)element, (void)name;
  return NULL;
}

const char *bny_topo_xml_attribute_at(const bny_topo_xml *xml, int32_t element, int32_t place) {
  (void)xml, (void)element, (void)place;
  return NULL;
}

bny_topo_xml *bny_topo_xml_parse(const char *text, size_t bytes, bny_topo_error *error) {
  (void)text;
  (void)bytes;
  bny_topo_fail(error, 0, "XML cannot be read: this banyan was built without libxml2");
  return NULL;
}

#else

bool bny_topo_xml_available(void) { return true; }

void bny_topo_xml_free(bny_topo_xml *xml) {
  if (xml != NULL) {
    xmlFreeDoc(xml->document);
    free(xml->elements);
    free(xml);
  }
}

const char *bny_topo_xml_attribute(const bny_topo_xml *xml, int32_t element, const char *name) {
  for (const xmlAttr *a = xml->elements[element].attributes; a != NULL; a = a->next)
    if (strcmp((const char *)a->name, name) == 0)
      return a->children == NULL || a->children->content == NULL ? "" : (const char *)a->children->content;
  return NULL;
}

const char *bny_topo_xml_attribute_at(const bny_topo_xml *xml, int32_t element, int32_t place) {
  const xmlAttr *a = xml->elements[element].attributes;
  while (a != NULL && place-- > 0) a = a->next;
  return a == NULL ? NULL : (const char *)a->name;
}

/* State of one parse that its callbacks share. */
typedef struct reading {
  xmlParserCtxtPtr context;
  bny_topo_error *error;
  int32_t elements;
  int64_t attributes;
  bool failed;
} reading;

static void stop(reading *r, const char *why) {
  if (!r->failed) bny_topo_fail(r->error, xmlSAX2GetLineNumber(r->context), "%s", why);
  r->failed = true;
  xmlStopParser(r->context);
}

/* Bounds the tree before libxml2 adds to it. */
static void on_start(void *user, const xmlChar *name, const xmlChar *prefix, const xmlChar *uri, int nnamespaces,
                     const xmlChar **namespaces, int nattributes, int ndefaulted, const xmlChar **attributes) {
  reading *r = ((xmlParserCtxtPtr)user)->_private;
  r->elements++;
  r->attributes += nattributes;
  if (r->context->nodeNr >= DEPTH)
    stop(r, "elements nest more than 64 deep");
  else if (r->elements > MOST_ELEMENTS || r->attributes > MOST_ATTRIBUTES)
    stop(r, "more than a million elements, or 1.5 million attributes");
  else if (!r->failed)
    xmlSAX2StartElementNs(user, name, prefix, uri, nnamespaces, namespaces, nattributes, ndefaulted, attributes);
}

static void on_entity(void *user, const xmlChar *name, int type, const xmlChar *public_id, const xmlChar *system_id,
                      xmlChar *content) {
  (void)name, (void)type, (void)public_id, (void)system_id, (void)content;
  stop(((xmlParserCtxtPtr)user)->_private, "declares entities, which are not supported");
}

static void on_error(void *user, const xmlError *problem) {
  reading *r = ((xmlParserCtxtPtr)user)->_private;
  if (r->failed || problem->level < XML_ERR_ERROR) return;
  const char *message = problem->message == NULL ? "not well-formed" : problem->message;
  const xmlNode *open = r->context->node;
  r->failed = true;
  /* libxml2 reports missing ends of open elements as extra content. */
  if (problem->code == XML_ERR_DOCUMENT_END && open != NULL) {
    bny_topo_fail(r->error, xmlSAX2GetLineNumber(r->context), "XML: ends too early, in <%.40s> of line %ld",
                  (const char *)open->name, xmlGetLineNo(open));
  } else {
    bny_topo_fail(r->error, problem->line, "XML: %.*s", (int)strcspn(message, "\n"), message);
  }
  xmlStopParser(r->context);
}

/* Skips to the end of a tag, outside quotes. Returns false and sets *error if it has too many attributes. */
static bool skip_tag(cursor *c, bny_topo_error *error) {
  int attributes = 0;
  char quote = '\0';
  for (; c->at < c->end; skip(c, 1)) {
    if (quote != '\0') {
      quote = *c->at == quote ? '\0' : quote;
    } else if (*c->at == '"' || *c->at == '\'') {
      quote = *c->at;
      if (++attributes > MOST_IN_ONE)
        return bny_topo_fail(error, c->line, "an element with more than %d attributes", MOST_IN_ONE);
    } else if (*c->at == '>') {
      break;
    }
  }
  return true;
}

/* Bounds the number of attributes. libxml2 compares the attributes of an element pairwise before any callback, so a tag
 * with a million of them would block it. libxml2 itself reports text that is not well-formed. */
static bool is_bounded(const char *text, size_t bytes, bny_topo_error *error) {
  cursor c = {.at = text, .end = text + bytes, .line = 1};
  bool good = true, whole;
  while (good && c.at < c.end) {
    if (*c.at != '<') {
      skip(&c, 1);
    } else if (skip_content(&c, &whole)) {
      continue;
    } else if (starts(&c, "<!")) {
      skip_doctype_name(&c);
      good =
          c.at == c.end || *c.at != '[' ||
          bny_topo_fail(error, c.line, "a DOCTYPE with declarations (entities and the like), which are not supported");
    } else {
      good = skip_tag(&c, error);
    }
  }
  return good;
}

/* Builds libxml2's tree of the text, without comments and processing instructions. */
static void parse(reading *r, const char *text, size_t bytes) {
  r->context->_private = r;
  r->context->sax->startElementNs = on_start;
  r->context->sax->entityDecl = on_entity;
  r->context->sax->comment = NULL;
  r->context->sax->processingInstruction = NULL;
  r->context->sax->serror = (xmlStructuredErrorFunc)on_error;
  /* NOENT resolves &amp; and the like in attributes; entities that the file declares are rejected before. The text is
   * always read as UTF-8, regardless of its declaration, so that is_bounded() and libxml2 see the same text. */
  xmlCtxtUseOptions(r->context, XML_PARSE_NONET | XML_PARSE_NOENT | XML_PARSE_IGNORE_ENC | XML_PARSE_NOCDATA |
                                    XML_PARSE_COMPACT | XML_PARSE_BIG_LINES);
  enum { CHUNK = 1 << 16 };
  for (size_t at = 0; at < bytes && !r->failed; at += CHUNK) {
    size_t chunk = bytes - at < CHUNK ? bytes - at : CHUNK;
    xmlParseChunk(r->context, text + at, (int)chunk, 0);
  }
  if (!r->failed) xmlParseChunk(r->context, NULL, 0, 1);
  if (!r->failed && (!r->context->wellFormed || xmlDocGetRootElement(r->context->myDoc) == NULL)) {
    r->failed = true;
    bny_topo_fail(r->error, xmlSAX2GetLineNumber(r->context), "XML ends too early");
  }
}

/* Returns the text of an element without children, trimmed in place. The parser may keep it in several nodes. */
static const char *text_of(xmlNode *node) {
  xmlNode *first = node->children;
  for (xmlNode *child = first; child != NULL; child = child->next)
    if (child->type == XML_ELEMENT_NODE) return "";
  while (first != NULL && (first->type != XML_TEXT_NODE || xmlIsBlankNode(first))) first = first->next;
  if (first == NULL) return "";
  while (first->next != NULL && first->next->type == XML_TEXT_NODE) {
    xmlNode *next = first->next;
    first = xmlTextMerge(first, next);
  }
  char *from = (char *)first->content, *to = from + strlen(from);
  while (to > from && isspace((unsigned char)to[-1])) *--to = '\0';
  return from + strspn(from, " \t\n\v\f\r");
}

static void append(bny_topo_xml *xml, xmlNode *node, int32_t parent) {
  int32_t me = xml->count++;
  xml->elements[me] = (xml_element){.name = (const char *)node->name,
                                    .text = text_of(node),
                                    .attributes = node->properties,
                                    .parent = parent,
                                    .first = -1,
                                    .last = -1,
                                    .next = -1,
                                    .line = (int)xmlGetLineNo(node)};
  if (parent >= 0) {
    xml_element *above = &xml->elements[parent];
    *(above->last >= 0 ? &xml->elements[above->last].next : &above->first) = me;
    above->last = me;
  }
}

/* Numbers the elements in the order of their start tags. The caller has allocated the array. */
static void number(bny_topo_xml *xml) {
  int32_t open[DEPTH + 1] = {-1}, depth = 0;
  for (xmlNode *node = xmlDocGetRootElement(xml->document); node != NULL;) {
    if (node->type == XML_ELEMENT_NODE) {
      append(xml, node, open[depth]);
      if (node->children != NULL) {
        open[++depth] = xml->count - 1;
        node = node->children;
        continue;
      }
    }
    while (node->next == NULL && depth > 0) {
      node = node->parent;
      depth--;
    }
    node = depth > 0 ? node->next : NULL;
  }
}

bny_topo_xml *bny_topo_xml_parse(const char *text, size_t bytes, bny_topo_error *error) {
  if (!is_bounded(text, bytes, error)) return NULL;
  xmlInitParser(); /* Without this, threads that create the first contexts at once leak a mutex of libxml2 2.9. */
  bny_topo_xml *xml = calloc(1, sizeof *xml);
  reading r = {.error = error, .context = xmlCreatePushParserCtxt(NULL, NULL, NULL, 0, NULL)};
  bool ok = xml != NULL && r.context != NULL;
  if (ok) {
    parse(&r, text, bytes);
    xml->document = r.context->myDoc;
    xml->elements = r.failed ? NULL : calloc((size_t)r.elements, sizeof *xml->elements);
    ok = r.failed || xml->elements != NULL;
  }
  xmlFreeParserCtxt(r.context);
  if (!ok) bny_topo_fail(error, 0, "out of memory");
  if (!ok || r.failed) {
    bny_topo_xml_free(xml);
    return NULL;
  }
  number(xml);
  return xml;
}

#endif
