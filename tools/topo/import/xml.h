/* SPDX-License-Identifier: Apache-2.0
 * A reader for untrusted XML. It allows no entities, DTD or network access, bounds size and depth, and keeps the line
 * of each element. Only xml.c uses libxml2. Elements are numbered in the order of their start tags; the root is 0. A
 * parent therefore has a lower number than its children, and one loop visits all elements. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "topo/model/model.h"

typedef struct bny_topo_xml bny_topo_xml;

/* Finds name and line of the root element after comments, declarations and a DOCTYPE, without parsing the rest. Works
 * without libxml2. Returns false if this is not XML. */
bool bny_topo_xml_root(const char *text, size_t bytes, char *name, size_t name_bytes, int *line);
bool bny_topo_xml_root_is(const char *text, size_t bytes, const char *name);

bool bny_topo_xml_available(void); /* true if this build has libxml2 */

/* Returns a document that the caller frees. It returns NULL and sets *error (with the line) if the text is not
 * well-formed, too deep, too large or has entities, or if there is no libxml2. */
bny_topo_xml *bny_topo_xml_parse(const char *text, size_t bytes, bny_topo_error *error);
void bny_topo_xml_free(bny_topo_xml *xml);

int32_t bny_topo_xml_count(const bny_topo_xml *xml);
const char *bny_topo_xml_name(const bny_topo_xml *xml, int32_t element);
bool bny_topo_xml_is(const bny_topo_xml *xml, int32_t element, const char *name);
int bny_topo_xml_line(const bny_topo_xml *xml, int32_t element);
int32_t bny_topo_xml_parent(const bny_topo_xml *xml, int32_t element); /* -1 for the root */

/* Iterate over children in order; -1 after the last. */
int32_t bny_topo_xml_first(const bny_topo_xml *xml, int32_t element);
int32_t bny_topo_xml_next(const bny_topo_xml *xml, int32_t element);
int32_t bny_topo_xml_child(const bny_topo_xml *xml, int32_t element, const char *name); /* first of that name, or -1 */

/* Returns the text of an element without children, trimmed of blanks; otherwise "". */
const char *bny_topo_xml_text(const bny_topo_xml *xml, int32_t element);

/* Returns NULL if there is no such attribute. */
const char *bny_topo_xml_attribute(const bny_topo_xml *xml, int32_t element, const char *name);

/* Returns the name of the attribute of that place, from 0; NULL after the last. */
const char *bny_topo_xml_attribute_at(const bny_topo_xml *xml, int32_t element, int32_t place);

/* Reads a decimal integer in [least, most]. If the attribute is absent or empty, *value is unchanged. Returns false and
 * sets *error for any other text. */
bool bny_topo_xml_integer(const bny_topo_xml *xml, int32_t element, const char *name, int64_t least, int64_t most,
                          int64_t *value, bny_topo_error *error);
