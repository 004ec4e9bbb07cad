-- Decides about one request by all of its limits, at `now`: the time of the server in microseconds since 1970.
--
-- This is AdmissionController and Limiter of relent_core::admission, in Lua. The functions have the same names as
-- there. A property test compares all decisions of the two.
--
-- KEYS, for each limiter: state, reserved slots, open slots, tickets. ARGV: caller (8 bytes, or empty) and cost,
-- negative to give a cost back; then for each limiter: interval, burst, horizon, grace, in microseconds; and last the
-- time until which the caller waits. Returns verdict, rejecting limiter (from 0), delay; then for each limiter the
-- attempts available now, and the time until one more; and last the time.
local ADMITTED, DUE, TICKET, SHARED, TOO_COSTLY, LATE = 0, 1, 2, 3, 4, 5
local MOST = 4294967295
-- scheduled, line, latest, last reserved slot, last open slot, spare, and the numbers of reserved, open, tickets.
local STATE = '>I8I8I8I8I8I4I4I4I4'
local RESERVED, HELD = '>I8c8', '>I8I4'

-- The process has decided without Redis by then, so this call must not take quota.
if now > tonumber(ARGV[#ARGV]) then
    return {LATE, 0, 0, now}
end
local caller, given_back = ARGV[1], -tonumber(ARGV[2])
local cost = math.max(-given_back, 1)

local function load(number)
    local key, arg = 4 * (number - 1), 2 + 4 * (number - 1)
    local l = {
        keys = {state = KEYS[key + 1], reserved = KEYS[key + 2], open = KEYS[key + 3], tickets = KEYS[key + 4]},
        interval = tonumber(ARGV[arg + 1]), burst = tonumber(ARGV[arg + 2]),
        horizon = tonumber(ARGV[arg + 3]), grace = tonumber(ARGV[arg + 4]),
        scheduled = 0, line = 0, latest = 0, last_reserved = 0, last_open = 0,
        spare = 0, reserved = 0, open = 0, tickets = 0,
    }
    l.tolerance = l.interval * (l.burst - 1)
    local bytes = redis.call('GET', l.keys.state)
    if bytes then
        l.scheduled, l.line, l.latest, l.last_reserved, l.last_open, l.spare, l.reserved, l.open, l.tickets =
            struct.unpack(STATE, bytes)
    end
    l.latest = math.max(l.latest, now)
    -- Redis may evict each key alone: then the reservations are dropped, and the schedule stays.
    local held = 0
    for _, name in ipairs({'reserved', 'open', 'tickets'}) do
        held = held + (l[name] > 0 and 1 or 0)
    end
    if redis.call('EXISTS', l.keys.reserved, l.keys.open, l.keys.tickets) ~= held then
        redis.call('DEL', l.keys.reserved, l.keys.open, l.keys.tickets)
        l.reserved, l.open, l.tickets = 0, 0, 0
    end
    return l
end

-- All keys of a limiter expire together, when it no longer differs from a new one.
local function save(l)
    local ends = l.scheduled
    if l.line > 0 then
        ends = math.max(ends, l.line + l.tolerance)
    end
    if l.tickets > 0 then
        ends = math.max(ends, l.last_reserved + l.grace + 1)
    end
    if l.open > 0 then
        ends = math.max(ends, l.last_open + l.grace + 1)
    end
    if ends <= l.latest then
        redis.call('DEL', l.keys.state, l.keys.reserved, l.keys.open, l.keys.tickets)
        return
    end
    local at = string.format('%.0f', math.ceil(ends / 1000))
    redis.call('SET', l.keys.state, struct.pack(STATE, l.scheduled, l.line, l.latest, l.last_reserved, l.last_open,
        l.spare, l.reserved, l.open, l.tickets), 'PXAT', at)
    for _, name in ipairs({'reserved', 'open', 'tickets'}) do
        if l[name] > 0 then
            redis.call('PEXPIREAT', l.keys[name], at)
        end
    end
end

local function ticket_of(l, key)
    local bytes = key ~= '' and l.tickets > 0 and redis.call('HGET', l.keys.tickets, key)
    if not bytes then
        return nil
    end
    local slot, cost = struct.unpack(HELD, bytes)
    return {slot = slot, cost = cost}
end

local function remove_ticket(l, key)
    redis.call('HDEL', l.keys.tickets, key)
    l.tickets = l.tickets - 1
end

local function open_slot(l, index)
    return tonumber(redis.call('LINDEX', l.keys.open, index))
end

local function room(l, cost)
    return math.max(l.scheduled - (l.tolerance - l.interval * (cost - 1)), 0)
end

local function lapse(l)
    local over = l.latest - l.grace
    local lapsed = 0
    while l.reserved > 0 do
        local slot, key = struct.unpack(RESERVED, redis.call('LINDEX', l.keys.reserved, 0))
        if slot >= over then
            break
        end
        redis.call('LPOP', l.keys.reserved)
        l.reserved = l.reserved - 1
        local ticket = ticket_of(l, key)
        if ticket and ticket.slot == slot then
            lapsed = lapsed + ticket.cost
            remove_ticket(l, key)
        end
    end
    while l.open > 0 and open_slot(l, 0) < over do
        redis.call('LPOP', l.keys.open)
        l.open = l.open - 1
        lapsed = lapsed + 1
    end
    l.spare = math.min(l.spare + lapsed, l.burst)
    if room(l, 1) <= l.latest then
        l.scheduled = math.max(l.scheduled - l.interval * l.spare, 0)
        l.spare = 0
    end
end

local function place(l)
    if cost > l.burst then
        return 'impossible'
    end
    local ticket = ticket_of(l, caller)
    if ticket and l.latest < ticket.slot then
        return 'early', ticket
    end
    if ticket and cost <= ticket.cost then
        return 'due', ticket
    end
    if caller == '' and l.open >= cost and open_slot(l, cost - 1) <= l.latest then
        return 'open'
    end
    local kept = (caller == '' and l.burst > 1) and 1 or 0
    if l.spare - kept >= cost then
        return 'spare', ticket
    end
    if room(l, cost) <= l.latest then
        return 'room', ticket
    end
    return 'full', ticket
end

local function left_open(l)
    local line = math.max(l.line - math.max(room(l, 1), l.latest), 0)
    return math.min(math.ceil(line / l.interval), cost)
end

local function reserved_slot(l)
    local room = room(l, cost)
    local slot = room + l.interval * left_open(l)
    if slot - l.latest > l.horizon then
        return SHARED, room - l.latest
    end
    return TICKET, slot - l.latest
end

local function queue_time(l)
    local room = room(l, cost)
    local place = math.max(l.line + l.interval * (cost - 1), room)
    if place - l.latest > l.horizon then
        place = math.max(l.latest + l.horizon, room)
    end
    return SHARED, place - l.latest
end

local function verdict(l, place, ticket)
    if place == 'impossible' then
        return TOO_COSTLY, 0
    elseif place == 'due' then
        return DUE, 0
    elseif place == 'early' then
        return TICKET, ticket.slot - l.latest
    elseif place ~= 'full' then
        return ADMITTED, 0
    elseif caller ~= '' then
        return reserved_slot(l)
    end
    return queue_time(l)
end

local function reserve(l)
    local what, delay = reserved_slot(l)
    if what ~= TICKET then
        return
    end
    for _ = 1, left_open(l) do
        l.last_open = room(l, 1)
        redis.call('RPUSH', l.keys.open, string.format('%.0f', l.last_open))
        l.open = l.open + 1
        l.scheduled = l.scheduled + l.interval
        l.line = l.line + l.interval
    end
    l.scheduled = l.scheduled + l.interval * cost
    l.last_reserved = l.latest + delay
    redis.call('RPUSH', l.keys.reserved, struct.pack(RESERVED, l.last_reserved, caller))
    redis.call('HSET', l.keys.tickets, caller, struct.pack(HELD, l.last_reserved, cost))
    l.reserved = l.reserved + 1
    l.tickets = l.tickets + 1
end

local function queue_unkeyed(l)
    local first = room(l, 1)
    local place = math.max(l.line, first)
    if place + l.interval * (cost - 1) > l.latest + l.horizon then
        l.line = math.max(place, first + l.interval)
    else
        l.line = place + l.interval * cost
    end
end

local function peek(l)
    lapse(l)
    return verdict(l, place(l))
end

local function judge(l)
    lapse(l)
    local found, ticket = place(l)
    if found == 'early' or found == 'impossible' then
        return
    end
    local left = 0
    if ticket then
        remove_ticket(l, caller)
        left = found == 'due' and ticket.cost - cost or ticket.cost
    end
    if found == 'open' then
        redis.call('LTRIM', l.keys.open, cost, -1)
        l.open = l.open - cost
    elseif found == 'spare' then
        l.spare = l.spare - cost
    elseif found == 'room' then
        l.scheduled = math.max(l.scheduled, l.latest) + l.interval * cost
    elseif found == 'full' and caller ~= '' then
        reserve(l)
    elseif found == 'full' then
        queue_unkeyed(l)
    end
    l.spare = math.min(l.spare + left, l.burst)
end

local function available(l, within)
    lapse(l)
    local from, to = math.max(l.scheduled, l.latest), l.latest + within + l.tolerance
    local scheduled = to >= from and math.floor((to - from) / l.interval) + 1 or 0
    return math.min(scheduled + l.spare, MOST)
end

local function until_available(l, attempts)
    local more = math.max(attempts - l.spare, 0)
    if more == 0 then
        return 0
    end
    local last = l.interval * (more - 1) + math.max(l.scheduled, l.latest)
    return math.max(last - l.tolerance - l.latest, 0)
end

local limiters = {}
for number = 1, #KEYS / 4 do
    limiters[number] = load(number)
end

if given_back > 0 then
    for _, l in ipairs(limiters) do
        lapse(l)
        l.spare = math.min(l.spare + given_back, l.burst)
        save(l)
    end
    return {}
end

local what, by, delay = ADMITTED, 0, 0
local verdicts = {}
for number, l in ipairs(limiters) do
    local own, time = peek(l)
    verdicts[number] = {own, time}
    if own == TOO_COSTLY then
        what, by, delay = own, number - 1, 0
        break
    elseif own == DUE and what == ADMITTED then
        what = DUE
    elseif (own == TICKET or own == SHARED) and (what <= DUE or time > delay) then
        what, by, delay = own, number - 1, time
    end
end
if what <= DUE then
    for _, l in ipairs(limiters) do
        judge(l)
    end
elseif what ~= TOO_COSTLY then
    for number, l in ipairs(limiters) do
        local own, time = verdicts[number][1], verdicts[number][2]
        if own > DUE and time + l.grace >= delay then
            judge(l)
        end
    end
end

local reply = {what, by, delay}
for _, l in ipairs(limiters) do
    local left = available(l, 0)
    local refuses = what > DUE and left < cost
    local more = until_available(l, math.min(left + 1, MOST))
    if refuses and (what == TICKET or what == SHARED) then
        -- A caller with a reserved slot need not wait for the next one.
        more = math.min(more, delay)
    end
    reply[#reply + 1] = left
    reply[#reply + 1] = more
    save(l)
end
reply[#reply + 1] = now
return reply
