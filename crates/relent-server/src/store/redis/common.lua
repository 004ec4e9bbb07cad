-- What all scripts begin with, after `now`: the time of the server in microseconds since 1970.
--
-- This is relent_core::claim once more, in Lua: a property test compares the two, decision by decision.

-- Exact as a number of Lua; in the year 2255.
local FOREVER = 9007199254740991
local VERSION = 1
local RUNNING, COMPLETED, RELEASED, UNKNOWN = 0, 1, 2, 3
-- Version, stage, repeated, step, fence, end of the lease, end of the record, owner, fingerprint. The answer follows.
local FORMAT = '>BBBI4I8I8I8c16c32'

local function after(instant, span)
    return math.min(instant + span, FOREVER)
end

-- nil if it may be forgotten: whether it has been removed already makes no difference.
local function parse(bytes)
    local version, stage, repeated, step, fence, ends, expires, owner, fingerprint, rest = struct.unpack(FORMAT, bytes)
    if version ~= VERSION then
        error({err = 'RELENTVERSION a later version of relent-server has written this record'})
    end
    if now >= expires then
        return nil
    end
    return {
        stage = stage, repeated = repeated, step = step, fence = fence, ends = ends, expires = expires,
        owner = owner, fingerprint = fingerprint, answer = string.sub(bytes, rest),
    }
end

-- nil if there is none.
local function read()
    local bytes = redis.call('GET', KEYS[1])
    return bytes and parse(bytes) or nil
end

-- Redis removes it when it may be forgotten, and not before.
local function put(r, answer)
    local bytes = struct.pack(FORMAT, VERSION, r.stage, r.repeated, r.step, r.fence, r.ends, r.expires, r.owner, r.fingerprint)
    redis.call('SET', KEYS[1], bytes .. answer, 'PXAT', string.format('%.0f', math.ceil(r.expires / 1000)))
end
