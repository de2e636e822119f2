// SPDX-License-Identifier: MIT
/*
 * source_verify.h - a source that a program hands in, before anything is called in it.
 */
#ifndef QUIRE_PAGES_SOURCE_VERIFY_H
#define QUIRE_PAGES_SOURCE_VERIFY_H

#include <quire/source.h>

/* 0 also for NULL; -EINVAL, -E2BIG: the verbs are of a length, or say something, that this library does not know. */
int source_verify(const struct quire_source *source);

#endif
