// Package pgxfence has the tests of fence/pgxfence on a real PostgreSQL, at every isolation level and in every
// exec mode of pgx, next to holders that come through fence/sqlfence.
//
// LEASEFENCE_SQL_ATTEMPTS sets how many writes the randomized run attempts.
package pgxfence
