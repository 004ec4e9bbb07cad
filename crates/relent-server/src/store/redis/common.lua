-- The common start of all scripts, after `now`: the time of the server in microseconds since 1970.
--
-- This is relent_core::idempotency::Record in Lua; a property test compares all decisions of the two.

-- In the year 2255; a Lua number is exact up to it.
local MAX_MICROS = 9007199254740991
local VERSION = 1
local RUNNING, COMPLETED, RELEASED, UNKNOWN = 0, 1, 2, 3
-- Version, stage, repeated, step, fencing token, end of the lease or of an execution whose outcome is unknown, expiry,
-- owner, fingerprint. The response follows.
local FORMAT = '>BBBI4I8I8I8c16c32'

local function after(instant, span)
    return math.min(instant + span, MAX_MICROS)
end

-- Returns nil if the record has expired, whether Redis has removed it yet or not.
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

-- Returns nil if there is no record.
local function read()
    local bytes = redis.call('GET', KEYS[1])
    return bytes and parse(bytes) or nil
end

-- Redis removes the record at its expiry.
local function put(r, answer)
    local bytes = struct.pack(FORMAT, VERSION, r.stage, r.repeated, r.step, r.fence, r.ends, r.expires, r.owner, r.fingerprint)
    redis.call('SET', KEYS[1], bytes .. answer, 'PXAT', string.format('%.0f', math.ceil(r.expires / 1000)))
end
