// Runs the unmodified npm package salesforce-pubsub-api-client against an emulator.
// scripts/npm_client.sh runs it twice, because the package closes a managed stream only when its
// process ends. The arguments are the emulator's ready line and `first` or `second`. It prints one
// JSON line with the results, and fails if a result is not as expected.
import assert from 'node:assert/strict';
import { generateKeyPairSync } from 'node:crypto';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const require = createRequire(pathToFileURL(process.cwd() + '/'));
const { default: PubSubApiClient } = await import(
    pathToFileURL(require.resolve('salesforce-pubsub-api-client').replace(/\.cjs$/, '.js'))
);

const TOPIC = '/event/Order_Event__e';
const MANAGED = 'My_Managed_Subscription';
const PATIENCE_MS = 20_000;
const ready = JSON.parse(process.argv[2]);
const { privateKey, publicKey } = generateKeyPairSync('rsa', {
    modulusLength: 2048,
    publicKeyEncoding: { type: 'spki', format: 'pem' },
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' }
});

const AUTH = {
    'user-supplied': { accessToken: ready.access_token, instanceUrl: ready.instance_url },
    'username-password': { username: 'user@example.com', password: 'emulator-password' },
    'oauth-client-credentials': { clientId: 'emulator', clientSecret: 'emulator-secret' },
    'oauth-jwt-bearer': { clientId: 'emulator', username: 'user@example.com', privateKey }
};

const quiet = { debug() {}, info() {}, warn() {}, error: (...words) => console.error(...words) };

async function call(method, path, body) {
    const answer = await fetch(ready.http + path, {
        method,
        headers: {
            Authorization: `Bearer ${ready.access_token}`,
            'Content-Type': 'application/json'
        },
        body: body && JSON.stringify(body)
    });
    const text = await answer.text();
    assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${text}`);
    return text ? JSON.parse(text) : null;
}

async function connect(authType) {
    const client = new PubSubApiClient(
        {
            authType,
            loginUrl: ready.http,
            pubSubEndpoint: ready.grpc,
            // The package has built-in public root certificates and accepts no others.
            rejectUnauthorizedSsl: false,
            ...AUTH[authType]
        },
        quiet
    );
    await client.connect();
    return client;
}

function within(promise, what) {
    let timer;
    const late = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error(`${what} took too long`)), PATIENCE_MS);
    });
    return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

// Returns the first `count` events of a subscription, which `open` starts with a callback.
function receive(count, open) {
    const found = [];
    return within(
        new Promise((resolve, reject) => {
            const callback = (info, type, data) => {
                if (type === 'event') found.push(data);
                if (type === 'error') reject(data);
                if (found.length === count) resolve({ events: found, info });
            };
            Promise.resolve(open(callback)).catch(reject);
        }),
        `receiving ${count} events`
    );
}

// Waits until the managed subscription meets the condition, and returns its record.
function until(condition, what) {
    const look = async () => {
        for (;;) {
            const record = (await call('GET', '/health')).managed_subscriptions[MANAGED];
            if (condition(record)) return record;
        }
    };
    return within(look(), what);
}

function order(number) {
    return {
        CreatedDate: Date.now(),
        CreatedById: '005SB0000000001YAA',
        Order_Number__c: { string: String(number) },
        City__c: null,
        Amount__c: { double: number },
        Quantity__c: null,
        Has_Shipped__c: null,
        Ordered_At__c: null,
        Notes__c: null
    };
}

function batch(client, numbers) {
    return within(
        new Promise((resolve, reject) => {
            client
                .publishBatch(TOPIC, numbers.map((number) => ({ payload: order(number) })), (_, type, data) => {
                    if (type === 'publishResponse') resolve(data.results);
                    if (type === 'error') reject(data);
                })
                .catch(reject);
        }),
        'publishing a batch'
    );
}

const numbersOf = (events) => events.map((event) => event.payload.Order_Number__c);

async function first() {
    // With each kind of sign-in: connect, publish an event, and receive all events so far.
    const signIns = [];
    for (const [index, authType] of Object.keys(AUTH).entries()) {
        const client = await connect(authType);
        const { replayId } = await client.publish(TOPIC, order(index));
        const { events } = await receive(index + 1, (callback) =>
            client.subscribeFromEarliestEvent(TOPIC, callback, index + 1)
        );
        assert.deepEqual(numbersOf(events), [...Array(index + 1).keys()].map(String));
        assert.equal(events.at(-1).replayId, replayId);
        signIns.push(authType);
        client.close();
    }

    // Publish a batch over PublishStream, and resume after the replay id of its first event.
    const client = await connect('oauth-client-credentials');
    const results = await batch(client, [4, 5]);
    assert.equal(results.length, 2);
    const { events: resumed } = await receive(1, (callback) =>
        client.subscribeFromReplayId(TOPIC, callback, 1, results[0].replayId)
    );
    assert.deepEqual(numbersOf(resumed), ['5']);

    // Managed subscription by name, whose record the package reads first; commit the 4th event.
    const { events: managed, info } = await receive(6, (callback) =>
        client.subscribeWithManagedSubscription(MANAGED, callback, 6)
    );
    assert.deepEqual(numbersOf(managed), ['0', '1', '2', '3', '4', '5']);
    client.commitReplayId(info.subscriptionId, managed[3].replayId);
    await until((record) => record.commits_accepted === 1, 'the commit');
    return { sign_ins: signIns, published: 6, received: managed.length, committed: 1 };
}

// A new process of the same subscriber resumes after the committed event.
async function second() {
    const { id } = await until((record) => !record.active, 'the end of the first run');
    const client = await connect('oauth-jwt-bearer');
    const { events } = await receive(2, (callback) =>
        client.subscribeWithManagedSubscription(id, callback, 2)
    );
    assert.deepEqual(numbersOf(events), ['4', '5']);

    // The package refuses a subscription that was stopped over the Tooling API.
    const path = `/services/data/v62.0/tooling/sobjects/ManagedEventSubscription/${id}`;
    const { Metadata } = await call('GET', path);
    await call('PATCH', path, { FullName: MANAGED, Metadata: { ...Metadata, state: 'STOP' } });
    const other = await connect('user-supplied');
    await assert.rejects(
        other.subscribeWithManagedSubscription(MANAGED, () => {}),
        /subscription is in STOP state/
    );
    return { resumed: events.length, stopped: true };
}

await call('POST', '/admin/apps', { client_id: 'emulator', public_key: publicKey });
console.log(JSON.stringify(await (process.argv[3] === 'second' ? second() : first())));
process.exit(0);
