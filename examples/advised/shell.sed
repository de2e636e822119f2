# SPDX-License-Identifier: MIT
#
# shell.sed - where a statement begins and ends in SQLite's shell.c (sqlite3_statement.h).

1i\
void statement_begin(const char *sql);\
void statement_end(void);

/^static int shell_exec($/,/^}/ {
    s/^    rc = sqlite3_prepare_v2(db, zSql, -1, &pStmt, &zLeftover);/    statement_begin(zSql);\n&/
    s/^ *rc2 = sqlite3_finalize(pStmt);/&\n      statement_end();/
}
