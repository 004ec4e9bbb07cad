-- KEYS: the record. ARGV: owner, fingerprint, lease and retention in microseconds, takeover, and the time until which
-- the caller waits. Returns decision, fencing token, time (end of the lease, or its rest), step, repeated, response,
-- now.

-- After a stall Redis executes claims whose callers no longer wait. Such a claim must do nothing.
if now > tonumber(ARGV[6]) then
    return {'late', 0, 0, 0, 0, '', now}
end
local owner, fingerprint, takeover = ARGV[1], ARGV[2], ARGV[5]
local lease, keep = tonumber(ARGV[3]), tonumber(ARGV[4])

local function run(fence, step, repeated)
    local ends = after(now, lease)
    put({
        stage = RUNNING, repeated = repeated, step = step, fence = fence, ends = ends,
        expires = after(ends, keep), owner = owner, fingerprint = fingerprint,
    }, '')
    return {'run', fence, ends, step, repeated, '', now}
end

local r = read()
if not r then
    return run(1, 0, 0)
end
if r.stage == RELEASED then
    return run(r.fence + 1, 0, 0)
end
-- This check comes first, so that nothing of the other request is revealed.
if r.fingerprint ~= fingerprint then
    return {'mismatch', 0, 0, 0, 0, '', now}
end
if r.stage == COMPLETED then
    return {'replay', 0, 0, 0, 0, r.answer, now}
end
if r.stage == RUNNING and r.owner == owner then
    return {'run', r.fence, r.ends, r.step, r.repeated, '', now}
end
if r.stage == RUNNING and now < r.ends then
    return {'in-flight', 0, r.ends - now, 0, 0, '', now}
end
if takeover == 'rerun' then
    return run(r.fence + 1, 0, 1)
end
if takeover == 'resume' then
    return run(r.fence + 1, r.step, 1)
end
if r.stage ~= UNKNOWN then
    -- It is unknown since the end of the lease, which is in the record already.
    r.stage = UNKNOWN
    r.expires = after(now, keep)
    put(r, '')
end
return {'unknown', 0, 0, 0, 0, '', now}
