# SPDX-License-Identifier: MIT
#
# sqlite3.sed - the call sites of SQLite 3.40's sqlite3.c that `./quire try` advises an arena for; what they call is sqlite3_statement.h.

/^SQLITE_PRIVATE void \*sqlite3DbRealloc(sqlite3 \*, void \*, u64);/a\
#include "sqlite3_statement.h"

/^static Expr \*tokenExpr(\|^  static Expr \*tokenExpr(/,/^}/ s/sqlite3DbMallocRawNN(/statement_alloc(/
/^SQLITE_PRIVATE Expr \*sqlite3ExprAlloc($/,/^}/ s/sqlite3DbMallocRawNN(/statement_alloc(/
/^SQLITE_PRIVATE SQLITE_NOINLINE ExprList \*sqlite3ExprListAppendNew($/,/^}/ s/sqlite3DbMallocRawNN(/statement_alloc(/
/^SQLITE_PRIVATE Select \*sqlite3SelectNew($/,/^}/ {
    s/sqlite3DbMallocRawNN(/statement_alloc(/
    s/pSrc = sqlite3DbMallocZero(pParse->db, sizeof(\*pSrc))/if( (pSrc = statement_alloc(pParse->db, sizeof(*pSrc)))!=0 ) memset(pSrc, 0, sizeof(*pSrc))/
}
/^SQLITE_PRIVATE int sqlite3VdbeAddOp4Dup8($/,/^}/ s/sqlite3DbMallocRawNN(/statement_alloc(/
/^static void SQLITE_NOINLINE vdbeChangeP4Full($/,/^}/ s/sqlite3DbStrNDup(/statement_text(/
/^SQLITE_PRIVATE SQLITE_NOINLINE ExprList \*sqlite3ExprListAppendGrow($/,/^}/ {
    s/sqlite3DbRealloc(db, pList,/statement_resize(db, pList, sizeof(*pList)+(pList->nAlloc\/2-1)*sizeof(pList->a[0]),/
}
/^SQLITE_PRIVATE void sqlite3Db\(NN\)\?FreeNN(sqlite3 \*db, void \*p){$/a\
  if( statement_owns(p) ) return;
