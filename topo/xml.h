/* SPDX-License-Identifier: Apache-2.0
 *
 * XML from strangers, through libxml2 and nothing of it outside of xml.c: no entities, no DTD, no network, bounded size and
 * depth, and the line of each element. Elements are numbered in the order of their start tags, the root is 0, and a parent
 * has a lower number than its children, so that one loop visits all. */
#ifndef BNY_TOPO_XML_H
#define BNY_TOPO_XML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "topo/model.h"

typedef struct bny_topo_xml bny_topo_xml;

/* The name and line of the root element, past comments, declarations and a DOCTYPE, without parsing the rest; works where
 * libxml2 is missing. False if this is not XML. */
bool bny_topo_xml_root(const char *text, size_t bytes, char *name, size_t name_bytes, int *line);
bool bny_topo_xml_root_is(const char *text, size_t bytes, const char *name);

bool bny_topo_xml_available(void); /* libxml2 */

/* NULL and *error (with the line) if it is not well-formed, too deep, too much, declares entities, or libxml2 is missing. */
bny_topo_xml *bny_topo_xml_parse(const char *text, size_t bytes, bny_topo_error *error);
void bny_topo_xml_free(bny_topo_xml *xml);

int32_t bny_topo_xml_count(const bny_topo_xml *xml);
const char *bny_topo_xml_name(const bny_topo_xml *xml, int32_t element);
bool bny_topo_xml_is(const bny_topo_xml *xml, int32_t element, const char *name);
int bny_topo_xml_line(const bny_topo_xml *xml, int32_t element);
int32_t bny_topo_xml_parent(const bny_topo_xml *xml, int32_t element); /* -1 for the root */

/* Children in order; -1 after the last. */
int32_t bny_topo_xml_first(const bny_topo_xml *xml, int32_t element);
int32_t bny_topo_xml_next(const bny_topo_xml *xml, int32_t element);
int32_t bny_topo_xml_child(const bny_topo_xml *xml, int32_t element, const char *name); /* the first of that name, or -1 */

/* Of an element without children, blanks at both ends taken off; else "". */
const char *bny_topo_xml_text(const bny_topo_xml *xml, int32_t element);

/* NULL if it has none of that name. */
const char *bny_topo_xml_attribute(const bny_topo_xml *xml, int32_t element, const char *name);

/* The attribute as a whole decimal number in [least, most]; *value stays if it is absent or empty. Else *error. */
bool bny_topo_xml_integer(const bny_topo_xml *xml, int32_t element, const char *name, int64_t least, int64_t most,
                          int64_t *value, bny_topo_error *error);

#endif
