/* SPDX-License-Identifier: MIT
 *
 * One table for the types that can be loaded, one for the names of those that cannot, so that a
 * refusal can say what it refuses.
 */
#include "base/qtype.h"

static const mx_qtype_info known[] = {
    {MX_F32, "F32", 1, 4},        {MX_F16, "F16", 1, 2},        {MX_Q4_0, "Q4_0", 32, 18},
    {MX_Q4_1, "Q4_1", 32, 20},    {MX_Q5_0, "Q5_0", 32, 22},    {MX_Q5_1, "Q5_1", 32, 24},
    {MX_Q8_0, "Q8_0", 32, 34},    {MX_Q2_K, "Q2_K", 256, 84},   {MX_Q3_K, "Q3_K", 256, 110},
    {MX_Q4_K, "Q4_K", 256, 144},  {MX_Q5_K, "Q5_K", 256, 176},  {MX_Q6_K, "Q6_K", 256, 210},
    {MX_IQ4_NL, "IQ4_NL", 32, 18}, {MX_IQ4_XS, "IQ4_XS", 256, 136}, {MX_BF16, "BF16", 1, 2},
    {MX_MXFP4, "MXFP4", 32, 17},
};

static const struct {
    uint32_t id;
    const char *name;
} foreign[] = {
    {9, "Q8_1"},     {15, "Q8_K"},   {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
    {19, "IQ1_S"},   {21, "IQ3_S"},  {22, "IQ2_S"},   {24, "I8"},     {25, "I16"},
    {26, "I32"},     {27, "I64"},    {28, "F64"},     {29, "IQ1_M"},  {34, "TQ1_0"},
    {35, "TQ2_0"},   {40, "NVFP4"},  {41, "Q1_0"},    {42, "Q2_0"},
};

const mx_qtype_info *mx_qtype_get(uint32_t id)
{
    for (size_t i = 0; i < MX_COUNT(known); i++) {
        if ((uint32_t)known[i].type == id) {
            return &known[i];
        }
    }
    return NULL;
}

const char *mx_qtype_foreign_name(uint32_t id)
{
    for (size_t i = 0; i < MX_COUNT(foreign); i++) {
        if (foreign[i].id == id) {
            return foreign[i].name;
        }
    }
    const mx_qtype_info *k = mx_qtype_get(id);
    return k != NULL ? k->name : NULL;
}

const char *mx_qtype_list(void)
{
    return "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, "
           "IQ4_XS, MXFP4";
}
