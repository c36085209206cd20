package redisfence

import (
	"crypto/sha1"
	"encoding/hex"
)

// Script is the caller's Lua code together with the guard. Create it once with [NewScript]; it is safe for concurrent
// use. The server caches it, and the client sends the text again only if the server does not know it.
type Script struct {
	source, sha string
}

// NewScript returns a script whose body runs only if the token is accepted. It sends nothing: the server reports a
// syntax error at the first [Marks.Run], before anything is written.
//
// The body is the body of a function. KEYS and ARGV have the keys and arguments of Run, without the mark and the token.
// Run returns its result. The body must not use keys that are not in KEYS, and must not write to a mark. SCRIPT KILL does
// not stop it, since the guard has written.
func NewScript(body string) *Script {
	// The body comes first, so that the server's messages have the caller's line numbers.
	return newScript("local function body(KEYS, ARGV) " + body + "\nend\n" + luaAdmit + luaGuard)
}

func newScript(source string) *Script {
	sum := sha1.Sum([]byte(source))
	return &Script{source: source, sha: hex.EncodeToString(sum[:])}
}

var (
	checkScript = newScript(luaAdmit + luaCheck)
	claimScript = NewScript("")
	opsScript   = NewScript(luaOps)
	readScript  = newScript(luaAdmit + luaRead)
)

// luaAdmit compares the mark with the token. Lua's numbers are doubles, which round above 2^53, and its comparison of
// strings depends on the server's locale, so luaAdmit compares digit by digit. A mark that equals the token is valid,
// as the token is. Any other mark must be what fence.Parse accepts. The remainder by 2^48 is exact, because all numbers
// on the way stay below 2^52.
//
// The value has the form of admission.Marks. A read mark that is not higher than the write mark refuses nobody in
// addition, so an accepted writer's token replaces both. The lock's name comes last, since it may contain spaces and
// digits. A value is well-formed only if form composes the same value from its parts.
//
// ARGV has the token; the name of the token's lock, or nothing; and '1' if the mark may follow another lock.
//
// see returns the write mark, the read mark and the lock; if the value is malformed, its fourth result is the refusal
// to answer. admit returns the refusal, or nil, both marks, and the lock to follow from now on.
const luaAdmit = `
local function less(a, b)
  if #a ~= #b then return #a < #b end
  for i = 1, #a do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return false
end

local function valid(mark)
  if #mark > 19 or not string.find(mark, '^[1-9][0-9]*$') or less('9223372036854775807', mark) then return false end
  local low = 0
  for i = 1, #mark do low = (low * 10 + string.byte(mark, i) - 48) % 281474976710656 end
  return low ~= 0
end

local function form(write, read, lock)
  if lock == '' then return write .. ' ' .. read end
  return write .. ' ' .. read .. ' ' .. lock
end

local function see(key, token, name)
  local mark = redis.pcall('GET', key)
  if mark == false then return '0', '0', '' end
  if type(mark) == 'table' then
    if string.sub(mark.err, 1, 9) == 'WRONGTYPE' then return nil, nil, nil, {'malformed', mark.err} end
    return nil, nil, nil, mark
  end
  if mark == form(token, '0', name) then return token, '0', name end
  local write, read, lock = string.match(mark, '^([0-9]+) ([0-9]+) ?(.*)$')
  if write and #lock <= 2304 and mark == form(write, read, lock) then
    if read == '0' and valid(write) then return write, read, lock end
    if valid(read) and (write == '0' or valid(write)) and less(write, read) then return write, read, lock end
  end
  return nil, nil, nil, {'malformed', string.sub(mark, 1, 25)}
end

local function admit(reads)
  local token, name = ARGV[1], ARGV[2]
  local write, read, lock, refusal = see(KEYS[1], token, name)
  if refusal then return refusal end
  local other = lock ~= '' and lock ~= name and ARGV[3] ~= '1'
  if other and name ~= '' then return {'other', lock} end
  if less(token, write) then return {'stale', write} end
  if not reads and less(token, read) then return {'read', read} end
  if other then return {'other', lock} end
  if name ~= '' then lock = name end
  return nil, write, read, lock
end
`

// luaCheck gets the mark's key.
const luaCheck = `
return (admit(false)) or {'ok'}
`

// luaRead gets the mark's key; the token is a reader's. It writes an unchanged mark too, because a replica refuses the
// write: otherwise a former primary would accept the reader although it does not know of a newer writer.
const luaRead = `
local refusal, write, read, lock = admit(true)
if refusal then return refusal end
if less(write, ARGV[1]) and less(read, ARGV[1]) then read = ARGV[1] end
redis.call('SET', KEYS[1], form(write, read, lock))
return {'ok'}
`

// luaGuard gets the mark's key and the caller's keys, and its own arguments before the caller's. It writes an unchanged
// mark too: SET removes an expiry that something else has set, and a server that refuses writes, for example for lack of
// memory, refuses this one before the body has begun.
//
// An error of the body is part of the answer, also one that the body raises: see bodyError.
const luaGuard = `
local refusal, _, _, lock = admit(false)
if refusal then return refusal end
redis.call('SET', KEYS[1], form(ARGV[1], '0', lock))
local keys, args = {}, {}
for i = 2, #KEYS do keys[i - 1] = KEYS[i] end
for i = 4, #ARGV do args[i - 3] = ARGV[i] end
local ran, answer = pcall(body, keys, args)
if type(answer) == 'table' and answer.err then return {'failed', answer.err} end
if type(answer) == 'table' and not ran then answer = 'the script has raised a table' end
if not ran then return {'failed', tostring(answer)} end
return {'ok', answer}
`

// luaOps runs one command for each key. For each command the arguments are its name, the number of its arguments, and
// these.
const luaOps = `
local replies, at = {}, 1
for i = 1, #KEYS do
  local n = tonumber(ARGV[at + 1])
  local reply = redis.pcall(ARGV[at], KEYS[i], unpack(ARGV, at + 2, at + 1 + n))
  if type(reply) == 'table' and reply.err then return {i, reply.err} end
  replies[i] = reply
  at = at + 2 + n
end
return {0, replies}
`
