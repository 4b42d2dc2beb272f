/* SPDX-License-Identifier: Apache-2.0
 * Importers of all formats that the tools read: one file each, and a place in the list of import.c. */
#pragma once

#include "topo/model/load.h"

extern const bny_topo_importer *const bny_topo_importers[]; /* ends with NULL */

/* Imports a text with the importer that recognises it. importer_name may be NULL; otherwise *importer_name receives the
 * importer's name. Returns a checked model that the caller frees. On failure it returns NULL and sets *error. */
bny_topo *bny_topo_import(const char *text, size_t bytes, const char **importer_name, bny_topo_error *error);

/* Loads a regular file, a pipe until its writer closes it, or standard input for "-". If no such file exists, the
 * string may be a synthetic description instead. The text of *error begins with "FILE:LINE: ". */
bny_topo *bny_topo_load(const char *path, const char **importer_name, bny_topo_error *error);
