/* SPDX-License-Identifier: Apache-2.0 */
#include "topo/import/xml.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 64, MOST_ELEMENTS = 1000000, MOST_ATTRIBUTES = 8000000, MOST_IN_ONE = 256 };

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
  for (; bytes > 0 && c->at < c->end; bytes--) {
    c->line += *c->at++ == '\n';
  }
}

static bool skip_past(cursor *c, const char *what) {
  while (c->at < c->end && !starts(c, what)) {
    skip(c, 1);
  }
  bool found = c->at < c->end;
  skip(c, strlen(what));
  return found;
}

/* Skips to the > of a DOCTYPE, or to the [ of its declarations. */
static void skip_doctype_name(cursor *c) {
  char quote = '\0';
  for (; c->at < c->end && (quote != '\0' || (*c->at != '>' && *c->at != '[')); skip(c, 1)) {
    if (quote != '\0') {
      quote = *c->at == quote ? '\0' : quote;
    } else if (*c->at == '"' || *c->at == '\'') {
      quote = *c->at;
    }
  }
}

static bool skip_doctype(cursor *c) {
  skip_doctype_name(c);
  return (c->at == c->end || *c->at != '[' || skip_past(c, "]")) && skip_past(c, ">");
}

bool bny_topo_xml_root(const char *text, size_t bytes, char *name, size_t name_bytes, int *line) {
  cursor c = {.at = text, .end = text + bytes, .line = 1};
  if (starts(&c, "\xef\xbb\xbf")) {
    skip(&c, 3);
  }
  for (;;) {
    while (c.at < c.end && isspace((unsigned char)*c.at)) {
      skip(&c, 1);
    }
    bool more = true;
    if (starts(&c, "<!--")) {
      more = skip_past(&c, "-->");
    } else if (starts(&c, "<?")) {
      more = skip_past(&c, "?>");
    } else if (starts(&c, "<!DOCTYPE")) {
      more = skip_doctype(&c);
    } else {
      break;
    }
    if (!more) {
      return false;
    }
  }
  if (!starts(&c, "<")) {
    return false;
  }
  c.at++;
  size_t length = 0;
  while (c.at + length < c.end && (isalnum((unsigned char)c.at[length]) || strchr("_-.:", c.at[length]) != NULL) &&
         c.at[length] != '\0') {
    length++;
  }
  if (length == 0 || length >= name_bytes || !(isalpha((unsigned char)c.at[0]) || c.at[0] == '_')) {
    return false;
  }
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

typedef struct xml_element {
  int32_t parent, first, last, next; /* elements; -1 none */
  int32_t attributes, nattributes;   /* first, count */
  uint32_t name, text;               /* offsets into strings */
  int line;
} xml_element;

typedef struct xml_attribute {
  uint32_t name, value;
} xml_attribute;

struct bny_topo_xml {
  xml_element *elements;
  xml_attribute *attributes;
  char *strings; /* NUL-terminated, one after the other; the first is "" */
  size_t nelements, nattributes, nbytes;
  size_t elements_capacity, attributes_capacity, bytes_capacity;
};

void bny_topo_xml_free(bny_topo_xml *xml) {
  if (xml != NULL) {
    free(xml->elements);
    free(xml->attributes);
    free(xml->strings);
    free(xml);
  }
}

int32_t bny_topo_xml_count(const bny_topo_xml *xml) {
  return (int32_t)xml->nelements;
}

const char *bny_topo_xml_name(const bny_topo_xml *xml, int32_t element) {
  return xml->strings + xml->elements[element].name;
}

bool bny_topo_xml_is(const bny_topo_xml *xml, int32_t element, const char *name) {
  return strcmp(bny_topo_xml_name(xml, element), name) == 0;
}

int bny_topo_xml_line(const bny_topo_xml *xml, int32_t element) {
  return xml->elements[element].line;
}

int32_t bny_topo_xml_parent(const bny_topo_xml *xml, int32_t element) {
  return xml->elements[element].parent;
}

int32_t bny_topo_xml_first(const bny_topo_xml *xml, int32_t element) {
  return xml->elements[element].first;
}

int32_t bny_topo_xml_next(const bny_topo_xml *xml, int32_t element) {
  return xml->elements[element].next;
}

int32_t bny_topo_xml_child(const bny_topo_xml *xml, int32_t element, const char *name) {
  int32_t child = bny_topo_xml_first(xml, element);
  while (child >= 0 && !bny_topo_xml_is(xml, child, name)) {
    child = bny_topo_xml_next(xml, child);
  }
  return child;
}

const char *bny_topo_xml_text(const bny_topo_xml *xml, int32_t element) {
  return xml->strings + xml->elements[element].text;
}

const char *bny_topo_xml_attribute(const bny_topo_xml *xml, int32_t element, const char *name) {
  const xml_element *e = &xml->elements[element];
  for (int32_t i = 0; i < e->nattributes; i++) {
    const xml_attribute *a = &xml->attributes[e->attributes + i];
    if (strcmp(xml->strings + a->name, name) == 0) {
      return xml->strings + a->value;
    }
  }
  return NULL;
}

bool bny_topo_xml_integer(const bny_topo_xml *xml, int32_t element, const char *name, int64_t least, int64_t most,
                          int64_t *value, bny_topo_error *error) {
  const char *text = bny_topo_xml_attribute(xml, element, name);
  if (text == NULL || *text == '\0') {
    return true;
  }
  char *end;
  errno = 0;
  long long parsed = strtoll(text, &end, 10);
  if (end == text || *end != '\0') {
    return bny_topo_fail(error, bny_topo_xml_line(xml, element), "<%.40s %s=\"%.40s\">: not a whole number",
                         bny_topo_xml_name(xml, element), name, text);
  }
  if (errno == ERANGE || parsed < least || parsed > most) {
    return bny_topo_fail(error, bny_topo_xml_line(xml, element), "<%.40s %s=\"%.40s\">: absurd, wants %lld to %lld",
                         bny_topo_xml_name(xml, element), name, text, (long long)least, (long long)most);
  }
  *value = parsed;
  return true;
}

#ifndef HAVE_LIBXML2

bool bny_topo_xml_available(void) {
  return false;
}

bny_topo_xml *bny_topo_xml_parse(const char *text, size_t bytes, bny_topo_error *error) {
  (void)text;
  (void)bytes;
  bny_topo_fail(error, 0, "XML cannot be read: this banyan was built without libxml2");
  return NULL;
}

#else

#include <libxml/parser.h>
#include <libxml/parserInternals.h>

bool bny_topo_xml_available(void) {
  return true;
}

/* State of one parse that its callbacks share. */
typedef struct reading {
  bny_topo_xml *xml;
  xmlParserCtxtPtr context;
  bny_topo_error *error;
  int32_t open[DEPTH]; /* elements from the root to the current one */
  int depth;
  char *text; /* text of the open element while it has no child */
  size_t text_bytes, text_capacity;
  bool failed;
} reading;

static void stop(reading *r, const char *why) {
  if (!r->failed) {
    r->failed = true;
    bny_topo_fail(r->error, xmlSAX2GetLineNumber(r->context), "%s", why);
    xmlStopParser(r->context);
  }
}

static bool reserve(reading *r, void **items, size_t wanted, size_t *capacity, size_t item_bytes) {
  if (wanted <= *capacity) {
    return true;
  }
  size_t larger = *capacity < 256 ? 256 : *capacity;
  while (larger < wanted) {
    larger *= 2;
  }
  void *moved = realloc(*items, larger * item_bytes);
  if (moved == NULL) {
    stop(r, "out of memory");
    return false;
  }
  *items = moved;
  *capacity = larger;
  return true;
}

/* Copies a string. The input bounds the memory, because each string is copied at most once. */
static uint32_t keep(reading *r, const char *text, size_t bytes) {
  bny_topo_xml *xml = r->xml;
  void *strings = xml->strings;
  bool room = reserve(r, &strings, xml->nbytes + bytes + 1, &xml->bytes_capacity, 1);
  xml->strings = strings;
  if (!room) {
    return 0;
  }
  uint32_t at = (uint32_t)xml->nbytes;
  memcpy(xml->strings + at, text, bytes);
  xml->strings[at + bytes] = '\0';
  xml->nbytes += bytes + 1;
  return at;
}

static void append_element(reading *r, const char *name) {
  bny_topo_xml *xml = r->xml;
  void *elements = xml->elements;
  bool room = reserve(r, &elements, xml->nelements + 1, &xml->elements_capacity, sizeof *xml->elements);
  xml->elements = elements;
  if (!room) {
    return;
  }
  int32_t me = (int32_t)xml->nelements++, parent = r->depth == 0 ? -1 : r->open[r->depth - 1];
  xml->elements[me] = (xml_element){.parent = parent,
                                .first = -1,
                                .last = -1,
                                .next = -1,
                                .attributes = (int32_t)xml->nattributes,
                                .name = keep(r, name, strlen(name)),
                                .line = xmlSAX2GetLineNumber(r->context)};
  if (parent >= 0) {
    xml_element *above = &xml->elements[parent];
    if (above->last >= 0) {
      xml->elements[above->last].next = me;
    } else {
      above->first = me;
    }
    above->last = me;
  }
  r->open[r->depth++] = me;
}

static void on_start(void *user, const xmlChar *name, const xmlChar *prefix, const xmlChar *uri, int nnamespaces,
                     const xmlChar **namespaces, int nattributes, int ndefaulted, const xmlChar **attributes) {
  (void)prefix, (void)uri, (void)nnamespaces, (void)namespaces, (void)ndefaulted;
  reading *r = user;
  bny_topo_xml *xml = r->xml;
  if (r->failed) {
    return;
  }
  if (r->depth == DEPTH) {
    stop(r, "elements nest more than 64 deep");
    return;
  }
  if (xml->nelements >= MOST_ELEMENTS || xml->nattributes + (size_t)nattributes > MOST_ATTRIBUTES) {
    stop(r, "more than a million elements, or 8 million attributes");
    return;
  }
  append_element(r, (const char *)name);
  void *items = xml->attributes;
  bool room = !r->failed && reserve(r, &items, xml->nattributes + (size_t)nattributes, &xml->attributes_capacity,
                                    sizeof *xml->attributes);
  xml->attributes = items;
  for (int i = 0; room && i < nattributes; i++) {
    /* Five pointers each: name, prefix, URI, value, end of value. */
    const char *const *five = (const char *const *)attributes + 5 * (size_t)i;
    xml->attributes[xml->nattributes++] =
        (xml_attribute){.name = keep(r, five[0], strlen(five[0])), .value = keep(r, five[3], (size_t)(five[4] - five[3]))};
    xml->elements[xml->nelements - 1].nattributes++;
  }
  r->text_bytes = 0;
}

static void on_text(void *user, const xmlChar *text, int bytes) {
  reading *r = user;
  /* Text between elements is layout. An empty <![CDATA[]]> has no bytes. */
  if (bytes <= 0 || r->failed || r->depth == 0 || r->xml->elements[r->open[r->depth - 1]].first >= 0) {
    return;
  }
  void *moved = r->text;
  bool room = reserve(r, &moved, r->text_bytes + (size_t)bytes, &r->text_capacity, 1);
  r->text = moved;
  if (room) {
    memcpy(r->text + r->text_bytes, text, (size_t)bytes);
    r->text_bytes += (size_t)bytes;
  }
}

static void on_end(void *user, const xmlChar *name, const xmlChar *prefix, const xmlChar *uri) {
  (void)name, (void)prefix, (void)uri;
  reading *r = user;
  if (r->failed) {
    return;
  }
  xml_element *ended = &r->xml->elements[r->open[--r->depth]];
  const char *from = r->text == NULL ? "" : r->text, *to = from + r->text_bytes;
  while (from < to && isspace((unsigned char)*from)) {
    from++;
  }
  while (from < to && isspace((unsigned char)to[-1])) {
    to--;
  }
  if (ended->first < 0 && from < to) {
    ended->text = keep(r, from, (size_t)(to - from));
  }
  r->text_bytes = 0;
}

static void on_entity(void *user, const xmlChar *name, int type, const xmlChar *public_id, const xmlChar *system_id,
                      xmlChar *content) {
  (void)name, (void)type, (void)public_id, (void)system_id, (void)content;
  stop(user, "declares entities, which are not taken");
}

static void stop_short(reading *r) {
  int32_t open = r->open[r->depth - 1];
  int line = xmlSAX2GetLineNumber(r->context);
  r->failed = true;
  bny_topo_fail(r->error, line, "XML: ends too early, in <%.40s> of line %d", bny_topo_xml_name(r->xml, open),
                bny_topo_xml_line(r->xml, open));
  xmlStopParser(r->context);
}

static void on_error(void *user, const xmlError *problem) {
  reading *r = user;
  if (r->failed || problem->level < XML_ERR_ERROR) {
    return;
  }
  const char *message = problem->message == NULL ? "not well-formed" : problem->message;
  /* libxml2 reports missing ends of open elements as extra content. */
  if (problem->code == XML_ERR_DOCUMENT_END && r->depth > 0) {
    stop_short(r);
    return;
  }
  r->failed = true;
  bny_topo_fail(r->error, problem->line, "XML: %.*s", (int)strcspn(message, "\n"), message);
  xmlStopParser(r->context);
}

/* Skips to the end of a tag, outside quotes. Returns false and *error if it has too many attributes. */
static bool skip_tag(cursor *c, bny_topo_error *error) {
  int attributes = 0;
  char quote = '\0';
  for (; c->at < c->end; skip(c, 1)) {
    if (quote != '\0') {
      quote = *c->at == quote ? '\0' : quote;
    } else if (*c->at == '"' || *c->at == '\'') {
      quote = *c->at;
      if (++attributes > MOST_IN_ONE) {
        return bny_topo_fail(error, c->line, "an element with more than %d attributes", MOST_IN_ONE);
      }
    } else if (*c->at == '>') {
      break;
    }
  }
  return true;
}

/* Counts attributes, because libxml2 compares those of an element pairwise before any callback: a tag with a million
 * would block it. libxml2 itself reports text that is not well-formed. */
static bool is_bounded(const char *text, size_t bytes, bny_topo_error *error) {
  cursor c = {.at = text, .end = text + bytes, .line = 1};
  bool good = true;
  while (good && c.at < c.end) {
    if (*c.at != '<') {
      skip(&c, 1);
    } else if (starts(&c, "<!--")) {
      skip(&c, 4);
      skip_past(&c, "-->");
    } else if (starts(&c, "<![CDATA[")) {
      skip_past(&c, "]]>");
    } else if (starts(&c, "<?")) {
      skip_past(&c, "?>");
    } else if (starts(&c, "<!")) {
      skip_doctype_name(&c);
      good = c.at == c.end || *c.at != '[' ||
             bny_topo_fail(error, c.line, "a DOCTYPE with declarations (entities and the like), which are not taken");
    } else {
      good = skip_tag(&c, error);
    }
  }
  return good;
}

/* Parses with callbacks and without a tree, so that banyan bounds the memory. */
static void run(reading *r, const char *text, size_t bytes) {
  *r->context->sax = (xmlSAXHandler){
      .initialized = XML_SAX2_MAGIC,
      .startElementNs = on_start,
      .endElementNs = on_end,
      .characters = on_text,
      .ignorableWhitespace = on_text,
      .cdataBlock = on_text,
      .entityDecl = on_entity,
      .serror = (xmlStructuredErrorFunc)on_error,
  };
  r->context->userData = r;
  /* NOENT resolves &amp; and the like in attributes; the file's own entities never get that far. The text is always
   * read as UTF-8, whatever the file declares, so that is_bounded() and libxml2 see the same. */
  xmlCtxtUseOptions(r->context, XML_PARSE_NONET | XML_PARSE_NOENT | XML_PARSE_IGNORE_ENC);
  enum { CHUNK = 1 << 16 };
  for (size_t at = 0; at < bytes && !r->failed; at += CHUNK) {
    size_t chunk = bytes - at < CHUNK ? bytes - at : CHUNK;
    xmlParseChunk(r->context, text + at, (int)chunk, 0);
  }
  if (!r->failed) {
    xmlParseChunk(r->context, NULL, 0, 1);
  }
  if (!r->failed && (!r->context->wellFormed || r->xml->nelements == 0 || r->depth != 0)) {
    stop(r, "XML ends too early");
  }
}

bny_topo_xml *bny_topo_xml_parse(const char *text, size_t bytes, bny_topo_error *error) {
  if (!is_bounded(text, bytes, error)) {
    return NULL;
  }
  reading r = {.error = error, .xml = calloc(1, sizeof(bny_topo_xml)),
               .context = xmlCreatePushParserCtxt(NULL, NULL, NULL, 0, NULL)};
  if (r.xml == NULL || r.context == NULL) {
    r.failed = true;
    bny_topo_fail(error, 0, "out of memory");
  } else {
    keep(&r, "", 0);
    run(&r, text, bytes);
  }
  if (r.context != NULL) {
    /* Callbacks could create a document, but none does. */
    xmlFreeDoc(r.context->myDoc);
    xmlFreeParserCtxt(r.context);
  }
  free(r.text);
  if (r.failed) {
    bny_topo_xml_free(r.xml);
    return NULL;
  }
  return r.xml;
}

#endif
