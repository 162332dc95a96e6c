// Receives events with the unmodified npm package salesforce-pubsub-api-client, and prints one JSON
// line with a sample. The logger discards debug messages, but the package still formats them.
// The argument is a job as JSON. Run it in the directory where the package is installed.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const WARM_UP = 0.2; // fraction of the events, the same as for the other clients
const require = createRequire(pathToFileURL(process.cwd() + '/'));
const { default: PubSubApiClient } = await import(
    pathToFileURL(require.resolve('salesforce-pubsub-api-client').replace(/\.cjs$/, '.js'))
);
const { run, target } = JSON.parse(process.argv[2]);
const silent = { debug() {}, info() {}, warn() {}, error: (...words) => console.error(...words) };

const client = new PubSubApiClient(
    {
        authType: 'user-supplied',
        pubSubEndpoint: target,
        accessToken: '00D000000000001!token',
        instanceUrl: 'https://127.0.0.1',
        organizationId: '00D000000000001AAA',
        // The package has built-in public root certificates and accepts no others.
        rejectUnauthorizedSsl: false
    },
    silent
);
await client.connect();

const now = () => ({ seen, wall: performance.now(), cpu: process.cpuUsage() });
const latencies = [];
let seen = 0;
let began = null;

function receive(_info, type, data) {
    if (type === 'error') throw data;
    if (type !== 'event') return;
    seen += 1;
    if (began === null) {
        if (seen >= WARM_UP * run.events) began = now();
        return;
    }
    if (run.rate > 0) {
        const at = (performance.timeOrigin + performance.now()) * 1e6;
        latencies.push(Math.round(at - data.replayId));
    }
    if (seen === run.events) finish();
}

function finish() {
    const end = now();
    const cpu = end.cpu.user + end.cpu.system - began.cpu.user - began.cpu.system;
    const sample = {
        events: end.seen - began.seen,
        seconds: (end.wall - began.wall) / 1e3,
        cpu: cpu / 1e6,
        peak_mb: process.resourceUsage().maxRSS / 1e3,
        latencies
    };
    process.stdout.write(JSON.stringify(sample) + '\n', () => process.exit(0));
}

client.subscribeFromEarliestEvent(`/data/${run.kind}_${run.size}_${run.rate}_0`, receive);
