# SPDX-License-Identifier: Apache-2.0
"""The Lua scripts: each is carried out whole, alone, and as one replicated step.

Every script begins with the same guard. It answers ``EPOCH`` where the epoch
the caller believes in is not in force, was taken over by another server
process, or lacks something; the caller then runs :data:`EPOCH` and begins again.

The guard looks at the replication id in every call, not at every connect: a
primary that is demoted, loaded with a stale replica's data and promoted again
keeps its clients' connections all the while.

A script that fails half-way is not undone by the server. So everything that can
be refused (memory, disk, replicas, key types) is refused at the first write:
the server judges memory once per call, and keys are typed by the guard. What
fails behind it all the same (a right that was taken away in mid-run) is told as
not written, and must not be read: a write puts a mark in the place of the count,
and whoever comes next to one that was left ends the epoch. Waking is no part of
a write, and fails none.
"""

from __future__ import annotations

import hashlib

import attrs


@attrs.frozen
class Script:
    """A script and the digest the server knows it by."""

    text: bytes
    sha: bytes

    @classmethod
    def of(cls, *parts: str) -> Script:
        text = "\n".join(parts).encode()
        return cls(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


_KEYS = "local meta, rows, order, deletions, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]"

#: Sets `replid`, and leaves where the server is no primary.
_PRIMARY = """
local replication = redis.call('INFO', 'replication')
if not string.find(replication, 'role:master', 1, true) then
  return redis.error_reply('READONLY this server is a replica')
end
local replid = string.match(replication, 'master_replid:(%x+)')
"""

#: Evicted or deleted keys show in the counts, at constant cost.
_WHOLE = """
local function is_whole(count)
  local named = redis.call('ZCARD', order)
  local dead = redis.call('ZCARD', deletions)
  return tonumber(count) == named and redis.call('HLEN', rows) + dead == named
    and redis.call('XLEN', wake) >= 0
end
"""

_GUARD = """
local held = redis.call('HMGET', meta, 'epoch', 'replid', 'seq', 'floor', 'count')
if held[1] ~= ARGV[1] or held[2] ~= replid or not is_whole(held[5]) then
  return {'EPOCH'}
end
local seq, floor, count = tonumber(held[3]), tonumber(held[4]), tonumber(held[5])
"""

#: In the place of the count while a write is carried out; no script meets it but behind one
#: that failed half-way.
_UNDER_WAY = "local UNDER_WAY = 'under way'"

_PREAMBLE = (_KEYS, _PRIMARY, _WHOLE, _GUARD)

#: KEYS: one of its own. Does whatever the others do: a right that is missing
#: would otherwise stop one of them half-way.
REHEARSAL = Script.of(
    """
local key = KEYS[1]
redis.call('INFO', 'replication')
redis.call('TIME')
redis.call('UNLINK', key)
redis.call('HSET', key, 'a', 1)
redis.call('HGET', key, 'a')
redis.call('HMGET', key, 'a')
redis.call('HEXISTS', key, 'a')
redis.call('HLEN', key)
redis.call('HDEL', key, 'a')
redis.call('ZADD', key, 1, 'a')
redis.call('ZSCORE', key, 'a')
redis.call('ZCARD', key)
redis.call('ZRANGEBYSCORE', key, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
redis.call('ZREM', key, 'a')
redis.call('XADD', key, 'MAXLEN', '=', 1, '1-1', 'v', 1)
redis.call('XLEN', key)
redis.call('UNLINK', key)
return {'OK'}
""",
)

#: ARGV: format, cloud, 16 hex digits of chance, why to begin anew or empty, the
#: newest epoch that the caller has seen or empty, turns of one that replaces an older
#: one (see epoch_memory) or empty where none may be replaced yet, the highest version
#: seen in that newest epoch.
#: -> OK epoch turns | NEW epoch turns why replaced | OLD epoch | FORMAT held | CLOUD held
EPOCH = Script.of(
    _KEYS,
    _PRIMARY,
    _WHOLE,
    _UNDER_WAY,
    """
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local held = redis.call(
  'HMGET', meta, 'format', 'cloud', 'epoch', 'replid', 'run_id', 'count', 'turns', 'seq')
if held[1] and held[1] ~= ARGV[1] then return {'FORMAT', held[1]} end
if held[2] and held[2] ~= ARGV[2] then return {'CLOUD', held[2]} end
local function began_of(name) return tonumber(string.match(name or '', '^(%d+)-')) or 0 end
local why, turns, seen = ARGV[4], 0, began_of(ARGV[5])
if why == '' then
  if not held[3] then
    why = 'the server held none'
  elseif held[6] == UNDER_WAY then
    why = 'a write failed half-way: look into who was told so, and why'
  elseif not is_whole(held[6]) then
    why = 'records are missing: keys were deleted or evicted'
  elseif held[4] ~= replid then
    -- The id changes, too, when a first replica comes and when the last one is
    -- given up; then the process is the same, and the second id is cleared, which a
    -- promotion sets. It takes a demotion, a promotion and an hour without replicas
    -- (repl-backlog-ttl) between two calls of any client to be deceived.
    local second = string.match(replication, 'master_replid2:(%x+)')
    if held[5] == run_id and second and not string.find(second, '[^0]') then
      -- This deletes nothing; behind it a full server takes the other.
      redis.call('HDEL', meta, '')
      redis.call('HSET', meta, 'replid', replid)
    else
      why = 'the server was restarted, restored or replaced by a replica'
    end
  end
end
if why == '' then
  -- Names are in the order in which epochs began, and so is chance where two began at once.
  local began = began_of(held[3])
  if held[3] == ARGV[5] and (tonumber(held[8]) or 0) < tonumber(ARGV[7]) then
    why = 'it is behind a version that was seen: old data was restored'
  elseif began > seen or (began == seen and held[3] >= ARGV[5]) then
    return {'OK', held[3], tonumber(held[7]) or 0}
  elseif ARGV[6] == '' then
    return {'OLD', held[3]}
  else
    why, turns = 'it is older than one that was seen', tonumber(ARGV[6])
  end
end
redis.call('UNLINK', meta, rows, order, deletions, wake)
local time = redis.call('TIME')
local began = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- Where the clock is behind, by a minute more: revisions are made of the time an epoch
-- began and its versions, and must not meet those of the epoch before.
local last = math.max(seen, began_of(held[3]))
if began <= last then began = last + 60000 end
local name = string.format('%.0f-%s', began, ARGV[3])
redis.call('HSET', meta, 'format', ARGV[1], 'cloud', ARGV[2], 'epoch', name, 'replid', replid,
  'run_id', run_id, 'seq', 0, 'floor', 0, 'count', 0, 'turns', turns)
redis.call('XADD', wake, 'MAXLEN', '=', 1, string.format('%.0f-0', began), 'v', 0)
return {'NEW', name, turns, why, held[3] or ''}
""",
)

#: ARGV: epoch. -> OK seq floor count tombstones
HEAD = Script.of(
    *_PREAMBLE,
    "return {'OK', seq, floor, count, redis.call('ZCARD', deletions)}",
)

#: ARGV: epoch, its `began`, then per write: name, version expected (0: no live
#: record), 'P' or 'D', payload.
#: -> OK, seq before them, then per write the version won, or {version, payload} that stands
WRITE = Script.of(
    *_PREAMBLE,
    _UNDER_WAY,
    """
local results, won, puts, created = {'OK', seq}, {}, false, 0
for at = 3, #ARGV, 4 do
  local name, expected = ARGV[at], tonumber(ARGV[at + 1])
  local version = tonumber(redis.call('ZSCORE', order, name) or 0)
  local fits = version == expected
  if expected == 0 and not fits then fits = redis.call('HEXISTS', rows, name) == 0 end
  if fits then
    won[#won + 1] = at
    puts = puts or ARGV[at + 2] == 'P'
    if version == 0 then created = created + 1 end
    results[#results + 1] = 0
  else
    results[#results + 1] = {version, redis.call('HGET', rows, name)}
  end
end
if #won == 0 then return results end
-- A full server refuses the first write if it takes memory, and what follows an
-- accepted write it takes: this refuses a call that puts, and lets one that only
-- deletes pass, for that is what makes room.
if not puts then redis.call('HDEL', meta, '') end
redis.call('HSET', meta, 'count', UNDER_WAY)
local time
for place, at in ipairs(won) do
  local name, version = ARGV[at], seq + place
  if ARGV[at + 2] == 'P' then
    redis.call('HSET', rows, name, ARGV[at + 3])
    redis.call('ZREM', deletions, name)
  else
    time = time or redis.call('TIME')
    redis.call('HDEL', rows, name)
    redis.call('ZADD', deletions, tonumber(time[1]) * 1000 + math.floor(time[2] / 1000), name)
  end
  redis.call('ZADD', order, version, name)
  results[(at + 9) / 4] = version
end
redis.call('HSET', meta, 'seq', seq + #won, 'count', count + created)
local entry = ARGV[2] .. '-' .. string.format('%.0f', seq + #won)
local woken = redis.pcall('XADD', wake, 'MAXLEN', '=', 1, entry, 'v', seq + #won)
if type(woken) == 'table' and woken.err then
  -- It holds a later entry, which somebody else's hand put there.
  redis.pcall('UNLINK', wake)
  redis.pcall('XADD', wake, 'MAXLEN', '=', 1, entry, 'v', seq + #won)
end
return results
""",
)

#: ARGV: epoch, names... -> OK seq, then per name {version, payload or nil}; version 0: absent
READ = Script.of(
    *_PREAMBLE,
    """
local found = {'OK', seq}
for at = 2, #ARGV do
  local version = tonumber(redis.call('ZSCORE', order, ARGV[at]) or 0)
  found[at + 1] = {version, version > 0 and redis.call('HGET', rows, ARGV[at])}
end
return found
""",
)

#: ARGV: epoch, version, limit, bytes at the most.
#: -> BEHIND seq | TRUNCATED floor | OK seq version more name version payload ...
FETCH = Script.of(
    *_PREAMBLE,
    """
local from, limit, room = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if from > seq then return {'BEHIND', seq} end
if from < floor then return {'TRUNCATED', floor} end
local names = redis.call('ZRANGEBYSCORE', order, '(' .. ARGV[2], '+inf', 'WITHSCORES',
  'LIMIT', 0, limit + 1)
local found, last = {'OK', seq, seq, 0}, from
for at = 1, #names, 2 do
  if at > 2 * limit or room <= 0 then
    found[3], found[4] = last, 1
    break
  end
  local payload = redis.call('HGET', rows, names[at])
  last = tonumber(names[at + 1])
  room = room - #(payload or '')
  found[#found + 1] = names[at]
  found[#found + 1] = last
  found[#found + 1] = payload
end
return found
""",
)

#: ARGV: epoch, version, names to look at, records at the most, bytes at the
#: most, namespaces... -> OK version-or-minus-one-at-the-end name version payload ...
PAGE = Script.of(
    *_PREAMBLE,
    """
local limit, room = tonumber(ARGV[4]), tonumber(ARGV[5])
local wanted
for at = 6, #ARGV do
  wanted = wanted or {}
  wanted[ARGV[at]] = true
end
local names = redis.call('ZRANGEBYSCORE', order, '(' .. ARGV[2], '+inf', 'WITHSCORES',
  'LIMIT', 0, ARGV[3])
local found = {'OK', #names < 2 * tonumber(ARGV[3]) and -1 or tonumber(names[#names])}
for at = 1, #names, 2 do
  local name = names[at]
  local payload = (not wanted or wanted[string.match(name, '^([^\\31]*)')])
    and redis.call('HGET', rows, name)
  if payload then
    found[#found + 1] = name
    found[#found + 1] = tonumber(names[at + 1])
    found[#found + 1] = payload
    limit, room = limit - 1, room - #payload
    if (limit == 0 or room <= 0) and at + 1 < #names then
      found[2] = tonumber(names[at + 1])
      break
    end
  end
end
return found
""",
)

#: ARGV: epoch, age in ms, tombstones at the most. -> OK dropped floor
#: The floor rises in the same step: no reader sees tombstones gone and an old floor.
COLLECT = Script.of(
    *_PREAMBLE,
    """
local time = redis.call('TIME')
local until_ms = tonumber(time[1]) * 1000 + math.floor(time[2] / 1000) - tonumber(ARGV[2])
local names = redis.call('ZRANGEBYSCORE', deletions, '-inf', until_ms, 'LIMIT', 0, ARGV[3])
if #names == 0 then return {'OK', 0, floor} end
for _, name in ipairs(names) do
  floor = math.max(floor, tonumber(redis.call('ZSCORE', order, name)))
  redis.call('ZREM', order, name)
  redis.call('ZREM', deletions, name)
end
redis.call('HSET', meta, 'floor', floor, 'count', count - #names)
return {'OK', #names, floor}
""",
)
