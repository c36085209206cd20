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

local function see(key, token)
  local mark = redis.pcall('GET', key)
  if mark == false then return mark, '0', '0' end
  if mark == token then return mark, mark, '0' end
  if type(mark) == 'table' then
    if string.sub(mark.err, 1, 9) == 'WRONGTYPE' then return mark, nil, nil, {'malformed', mark.err} end
    return mark, nil, nil, mark
  end
  if valid(mark) then return mark, mark, '0' end
  local write, read = string.match(mark, '^([0-9]+) ([0-9]+)$')
  if write and valid(read) and (write == '0' or valid(write)) and less(write, read) then return mark, write, read end
  return mark, nil, nil, {'malformed', string.sub(mark, 1, 25)}
end

local function admit(key, token)
  local mark, write, read, refusal = see(key, token)
  if refusal then return mark, refusal end
  if less(token, write) then return mark, {'stale', write} end
  if less(token, read) then return mark, {'read', read} end
  return mark
end

local _, refusal = admit(KEYS[1], ARGV[1])
return refusal or {'ok'}
