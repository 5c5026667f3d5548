/* SPDX-License-Identifier: MIT
 *
 * api_tool_types.h: what a request's tools are: their names, and which JSON type an argument that a
 * model wrote without quotes has.
 *
 * Pure functions, any thread.
 */
#ifndef MX_API_TOOL_TYPES_H
#define MX_API_TOOL_TYPES_H

#include "api/api_json.h"

/* The function of that name in a request's "tools" (an array in OpenAI's shape, or NULL); NULL:
 * there is none. */
struct json_object *mx_tool_find(struct json_object *tools, mx_str name);

/* Appends the value of an argument as JSON. What its schema allows decides: text for a string is
 * that string, whatever it looks like; else the first of null, number, boolean, object, array that
 * it is and may be. What fits nothing, or has no type, is a string. function: NULL = unknown. */
void mx_tool_write_value(mx_buf *out, struct json_object *function, mx_str parameter, mx_str text);

#endif
