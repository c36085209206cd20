package redisfence

import (
	"crypto/sha1"
	"encoding/hex"
)

// Script is Lua of the caller's behind the guard, in one script. Make it once with [NewScript]; it is safe for
// concurrent use. The server keeps it: it is sent again only when the server does not know it.
type Script struct {
	source, sha string
}

// NewScript returns a script whose body runs only if the token is accepted. Nothing is sent; what Lua does not accept
// is found by the server at the first [Fence.Run], before anything is written.
//
// The body is that of a function: KEYS and ARGV are what was given to Run, without the mark and the token, and what it
// returns is what Run returns. It must not reach for keys that are not in KEYS, nor write to a mark.
func NewScript(body string) *Script {
	// First, so that the server's messages have the line numbers of the caller.
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
)

// luaAdmit has the comparison. Lua's numbers are doubles, which round above 2^53, and its comparison of strings goes
// by the server's locale: digits are compared one by one. A mark that equals the token, which is valid, is valid; any
// other is held to what fence.Parse accepts. The remainder is exact: it stays below 2^52, and 2^48 is a power of two.
//
// admit returns the mark, false if there is none, and what to answer if the token is refused.
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

local function admit(key, token)
  local mark = redis.pcall('GET', key)
  if mark == false or mark == token then return mark end
  if type(mark) == 'table' then
    if string.sub(mark.err, 1, 9) == 'WRONGTYPE' then return mark, {'malformed', mark.err} end
    return mark, mark
  end
  if not valid(mark) then return mark, {'malformed', string.sub(mark, 1, 25)} end
  if less(token, mark) then return mark, {'stale', mark} end
  return mark
end
`

// luaCheck is called with the mark's key and the token.
const luaCheck = `
local _, refusal = admit(KEYS[1], ARGV[1])
return refusal or {'ok'}
`

// luaGuard is called with the mark's key and the caller's, with the token, '1' if the mark is to be written in any
// case, and the caller's arguments. SET takes an expiry off the mark, should it have got one.
const luaGuard = `
local mark, refusal = admit(KEYS[1], ARGV[1])
if refusal then return refusal end
if mark ~= ARGV[1] or ARGV[2] == '1' then redis.call('SET', KEYS[1], ARGV[1]) end
local keys, args = {}, {}
for i = 2, #KEYS do keys[i - 1] = KEYS[i] end
for i = 3, #ARGV do args[i - 2] = ARGV[i] end
local answer = body(keys, args)
if type(answer) == 'table' and answer.err then return answer end
return {'ok', answer}
`

// luaOps runs one command for each key. The arguments are, for each, its name, how many follow, and those.
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
